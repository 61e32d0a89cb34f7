"""A small program to be recorded: the main thread does one thing over and over, a worker thread moves blocks.

    python gil_workload.py NAME SECONDS [SWITCH_INTERVAL_S]

NAME chooses what the main thread does for 4 ms at a time, then it blocks for 4 ms in a releasing wait. Only "hold",
"spin_hold" and "ctypes_hold" (which leaves no row) keep the GIL inside a native call; "hog" and "loop_hog" keep it in
Python, for 20 ms and more, which is several switch intervals. The peer of a dispatch is another process that arrives
4 ms later.
"""

import ctypes
import hashlib
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time

BLOCK = bytes(64 << 10)
WAIT_S = 0.004
HOG_NS = 20_000_000
LOOP = 60_000
ECHO = """
import socket, sys
peer = socket.socket(fileno=int(sys.argv[1]))
while True:
    left = int(sys.argv[2])
    while left:
        got = len(peer.recv(left))
        if not got:
            sys.exit()
        left -= got
    peer.send(b"k")
"""
PEER = """
import mmap, sys, time
from tracelens_serving import native
rank = native.load().Buffer(mmap.mmap(int(sys.argv[1]), 0), 1, timeout_s=5.0)
wait_s = float(sys.argv[2])
rank.intranode_dispatch(0)
while True:
    rank.intranode_dispatch(0)
    time.sleep(wait_s)
    rank.intranode_dispatch(0)
"""


class Worker(threading.Thread):
    """Sends blocks to another process and reads its answers, as a transfer worker does; `gate` keeps it in step."""

    def __init__(self, gate=None):
        super().__init__(name="block_mover", daemon=True)
        mine, theirs = socket.socketpair()
        self.connection, self.gate = mine, gate
        self.echo = subprocess.Popen(
            [sys.executable, "-S", "-c", ECHO, str(theirs.fileno()), str(len(BLOCK))], pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def run(self):
        while True:
            if self.gate:
                self.gate.acquire()
            self.move_block()

    def move_block(self):
        self.connection.sendall(BLOCK)
        self.connection.recv(1)


def dispatcher(release_gil, wait="futex"):
    """A native dispatch that waits about WAIT_S for its peer, in every second call at once."""
    from tracelens_serving import native

    fd = os.memfd_create("ranks")
    os.ftruncate(fd, mmap.PAGESIZE)
    subprocess.Popen([sys.executable, "-c", PEER, str(fd), str(WAIT_S)], pass_fds=[fd], stderr=subprocess.DEVNULL)
    rank = native.load().Buffer(mmap.mmap(fd, 0), 0, wait=wait, release_gil=release_gil, timeout_s=60.0)
    rank.intranode_dispatch(0)

    def dispatch():
        rank.intranode_dispatch(0)
        rank.intranode_dispatch(0)

    return dispatch


def hog():
    """Pure Python that keeps the GIL, and leaves many rows."""
    total = 0
    end = time.monotonic_ns() + HOG_NS
    while time.monotonic_ns() < end:
        total += sum_of(20)
    return total


def loop_hog():
    """Some 30 ms of Python that calls nothing, so that it leaves one row."""
    total = 0
    for index in range(LOOP):
        total += index * index
    return total


def sum_of(count):
    """A little Python work."""
    total = 0
    for index in range(count):
        total += index * index
    return total


def main(name, seconds):
    """Run one workload."""
    import torch

    torch.set_num_threads(1)
    gate = threading.Semaphore(0) if name == "lockstep" else None
    big, numbers = bytes(6 << 20), list(range(200_000))
    act = {
        "hold": lambda: dispatcher(release_gil=False),
        "spin_hold": lambda: dispatcher(release_gil=False, wait="spin"),
        "release": lambda: dispatcher(release_gil=True),
        "spin_release": lambda: dispatcher(release_gil=True, wait="spin"),
        "lockstep": lambda: dispatcher(release_gil=True),
        "ctypes_hold": lambda: lambda: ctypes.PyDLL(None).usleep(20_000),
        "hog": lambda: hog,
        "loop_hog": lambda: loop_hog,
        "sleep": lambda: lambda: time.sleep(WAIT_S),
        "select": lambda: lambda: select.select([], [], [], WAIT_S),
        "sha256": lambda: lambda: hashlib.sha256(big).digest(),
        "sort": lambda: lambda: sorted(numbers, reverse=True),
    }[name]()
    worker = Worker(gate)
    worker.start()
    pause = threading.Event()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        act()
        if gate:
            gate.release()
        pause.wait(WAIT_S)
    worker.echo.kill()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.setswitchinterval(float(sys.argv[3]))
    main(sys.argv[1], float(sys.argv[2]))
