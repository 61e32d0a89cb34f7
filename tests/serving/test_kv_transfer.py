import socket
import threading

import pytest
from tracelens_serving.errors import ServingError
from tracelens_serving.kv_transfer import Chunk, KvSender, kv_receiver


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def sender(listener, slots, rate=0):
    return KvSender(socket.create_connection(listener.getsockname()), slots, block_bytes=1000, bytes_per_s=rate)


def test_every_byte_arrives_in_its_place_and_slots_come_back(listener):
    slots = [bytearray(bytes([i + 1]) * 2500) for i in range(2)]
    arrived, complete, closed = {}, [], threading.Event()

    def place(request):
        return memoryview(arrived.setdefault(request, bytearray(2500)))

    receiver = threading.Thread(
        target=kv_receiver, args=(listener, place, lambda *request: complete.append(request), closed.set)
    )
    receiver.start()
    sending = sender(listener, slots)
    worker = threading.Thread(target=sending.transfer_worker)
    worker.start()
    assert [sending.take_slot(), sending.take_slot()] == [0, 1]
    for request, slot in ((10, 0), (11, 1)):
        sending.chunks.put(Chunk(request, slot, 0, 1500))
        sending.chunks.put(Chunk(request, slot, 1500, 1000))
        sending.chunks.put(Chunk(request, slot, first_token=100 + request))
    assert {sending.take_slot(), sending.take_slot()} == {0, 1}
    sending.chunks.put(None)
    worker.join()
    receiver.join()
    assert closed.is_set()
    assert arrived == {10: slots[0], 11: slots[1]}
    assert complete == [(10, 110), (11, 111)]
    report = sending.report()
    assert (report["bytes"], report["blocks"]) == (5000, 6)
    assert report["block_ms"]["p50"] <= report["block_ms"]["p99"] <= report["block_ms"]["max"]
    assert report["busy_s"] * 1e3 >= report["block_ms"]["mean"]


def test_a_lost_link_wakes_whoever_waits_for_a_slot(listener):
    sending = sender(listener, [bytearray(10)])
    listener.accept()[0].close()
    worker = threading.Thread(target=sending.transfer_worker)
    worker.start()
    sending.chunks.put(Chunk(0, sending.take_slot(), 0, 10))
    with pytest.raises(ServingError, match="the KV link to decode is lost"):
        sending.take_slot()
    worker.join()
