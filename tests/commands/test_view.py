"""`tracelens view`: what it refuses, and one real run on a pseudo terminal."""

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import time
from fcntl import ioctl
from termios import TIOCSWINSZ

import msgspec
import pytest

from tests import reports
from tracelens.presenters.json import dumps

PATIENCE_S = 60


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "report.json"
    path.write_text(dumps(msgspec.to_builtins(reports.report())))
    return path


def test_view_needs_a_terminal(cli, saved):
    ended = cli("view", saved)
    assert ended.code == 2
    assert ended.err.startswith("tracelens: error: view needs a terminal\nhint: `tracelens analyze`")


@pytest.mark.parametrize(
    ("arguments", "said"), [(("-",), "reads keys from standard input"), (("report.json", "x"), "is viewed alone")]
)
def test_view_refuses_what_it_cannot_show(cli, saved, monkeypatch, arguments, said):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    ended = cli("view", *arguments)
    assert ended.code == 2
    assert said in ended.err


def on_a_terminal(arguments, until, keys):
    """Run view on an 80×24 pseudo terminal, press keys when `until` was printed; (exit code, all output)."""
    main, side = pty.openpty()
    ioctl(side, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "tracelens", "view", *map(str, arguments)]
    env = os.environ | {"TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=env, start_new_session=True)
    os.close(side)
    output, pressed, end = b"", False, time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end:
            if select.select([main], [], [], 0.1)[0]:
                try:
                    output += os.read(main, 65536)
                except OSError:  # the other side was closed
                    break
            if not pressed and until and until in output:
                os.write(main, keys)
                pressed = True
        return process.wait(PATIENCE_S), output.decode("utf-8", "replace")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(main)


def test_view_shows_a_saved_report_and_q_ends_it(saved):
    code, output = on_a_terminal([saved], until=b"intranode_dispatch", keys=b"q")
    assert code == 0
    assert "GIL001" in output
    assert "Traceback" not in output


def test_view_of_what_is_no_trace_leaves_the_two_lines_on_the_terminal(tmp_path):
    code, output = on_a_terminal([tmp_path / "none.json"], until=None, keys=b"")
    assert code == 2
    assert "none.json: no such file or directory" in output
    assert "hint: check the path" in output
    assert "Traceback" not in output
