"""The GIL probe in this process: its file format, and that it can be read when it was cut."""

import ctypes
import json
import os
import time

from tracelens.recorders.inside.probe import Probe


def record(tmp_path, work):
    path = tmp_path / "gil.jsonl"
    probe = Probe(str(path))
    probe.start()
    work()
    probe.stop()
    assert probe.error is None
    return [json.loads(line) for line in path.read_text().splitlines()], probe


def test_the_file_has_a_header_rows_and_an_end(tmp_path):
    lines, probe = record(tmp_path, lambda: time.sleep(0.5))
    header, *chunks, end = lines
    assert header["format"] == "tracelens.gil_probe/1"
    assert (header["pid"], header["os_tid"], header["period_ns"]) == (os.getpid(), probe.os_tid, 1_000_000)
    assert set(header["anchors"][0]) == {"monotonic_ns", "realtime_ns", "halfwidth_ns"}
    rows = [row for chunk in chunks for row in chunk]
    assert end["end"] is True
    assert end["rows"] == len(rows) > 50
    wakes = [row[0] for row in rows]
    assert wakes == sorted(wakes)
    assert all(late >= 0 and (delay is None or delay >= 0) for _, late, delay in rows)


def test_a_held_gil_makes_it_late_and_a_released_one_does_not(tmp_path):
    hold, release = ctypes.PyDLL(None).usleep, ctypes.CDLL(None).usleep

    def waited_ms(call):
        lines, _ = record(tmp_path, lambda: [call(20_000) for _ in range(10)])
        rows = [row for chunk in lines[1:-1] for row in chunk]
        return sum(max(0, late - (delay or 0)) for _, late, delay in rows) / 1e6

    assert waited_ms(hold) > 100 > 60 > waited_ms(release)


def test_a_path_that_cannot_be_written_is_an_error_line_not_an_exception(tmp_path):
    probe = Probe(str(tmp_path / "absent" / "gil.jsonl"))
    probe.start()
    probe.stop()
    assert probe.error is not None
    assert "FileNotFoundError" in probe.error
