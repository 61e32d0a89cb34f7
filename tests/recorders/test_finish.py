"""What a finished capture says of its processes."""

from tracelens.capture import Process, Window
from tracelens.recorders import finish


def notes(window_ms, seconds):
    window = Window(start_unix_ns=10**18, end_unix_ns=10**18 + window_ms * 1_000_000)
    process = Process(pid=7, name="serve.py", state="done", window=window)
    return finish._process_notes(process, {"torch": {"version": "2"}}, ["torch"], seconds)


def test_a_window_much_shorter_than_asked_for_is_told():
    (note,) = notes(12, 3.0)
    assert note.code == "window-short"
    assert "process 7 (serve.py) recorded 12.0 ms of 3 s" in note.says


def test_a_full_window_or_one_without_a_length_is_not():
    assert notes(2900, 3.0) == []
    assert notes(12, 0.0) == []
