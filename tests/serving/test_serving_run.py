"""The whole stack, as a command: it computes the same with the fault, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROLES = {"prefill rank 0", "prefill rank 1", "decode"}


def processes(tag: str) -> dict[str, int]:
    """The role processes, name → pid, that have `tag` in their environment."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = dict(
                pair.split("=", 1) for pair in (folder / "environ").read_text().split("\0") if "=" in pair
            )
        except (OSError, UnicodeDecodeError):
            continue
        if environment.get("TEST_TAG") == tag:
            rank = f" rank {environment['RANK']}" if "RANK" in environment else ""
            found[environment.get("TRACELENS_ROLE", "launcher") + rank] = int(folder.name)
    return found


@pytest.fixture
def start(compiler, environment, tmp_path):
    """Start the command; afterwards nothing that it started may be left."""
    tag = uuid.uuid4().hex
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    started = []

    def run(*arguments: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "tracelens_serving", "run", "--json", *arguments],
            env=environment | {"TEST_TAG": tag, "TMPDIR": str(temporary), "RANK": "7", "WORLD_SIZE": "9"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process.tag = tag
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:  # the test failed
            process.terminate()
            process.communicate()
    assert processes(tag) == {}
    assert list(temporary.iterdir()) == []


def wait_for_roles(process: subprocess.Popen) -> dict[str, int]:
    """Wait until the roles serve: their native module is mapped; return name → pid."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = processes(process.tag)
        ranks = [found.get(f"prefill rank {rank}") for rank in range(2)]
        try:
            if found.keys() >= ROLES and all("deep_ep-" in Path(f"/proc/{pid}/maps").read_text() for pid in ranks):
                return found
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError("the roles did not start")


def test_the_fault_changes_no_token_and_nothing_is_left(start, tmp_path):
    file = tmp_path / "settings.json"
    summaries = []
    for release_gil in (True, False):
        file.write_text(json.dumps({"ep.release_gil": release_gil}))
        process = start("--requests", "8", "--settings", str(file))
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        summaries.append(json.loads(output))
    released, held = summaries
    assert released["outputs_sha256"] == held["outputs_sha256"]
    for summary in summaries:
        assert "gil" not in json.dumps(summary)
        assert (summary["decode"]["requests"], summary["decode"]["tokens"]) == (8, 24)
        assert [rank["requests"] for rank in summary["prefill"]] == [4, 4]
        # Two engine steps; each of four layers dispatches both micro-batches, and the end of a step once more.
        assert [rank["dispatch"]["calls"] for rank in summary["prefill"]] == [18, 18]
        kv_bytes = 4 * 4 * 256 * 2 * 128 * 2  # requests, layers, tokens, keys and values, hidden, bytes
        assert [rank["kv"]["bytes"] for rank in summary["prefill"]] == [kv_bytes, kv_bytes]
        assert [rank["kv"]["blocks"] for rank in summary["prefill"]] == [kv_bytes // 16384] * 2
        assert all(rank["kv"]["block_ms"]["p99"] > 0 for rank in summary["prefill"])


def test_an_odd_number_of_requests_leaves_idle_micro_batches(start):
    process = start("--requests", "3", "--set", "ep.wait=spin", "--set", "kv.link_bytes_per_s=0")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    summary = json.loads(output)
    assert summary["decode"]["requests"] == 3
    assert [rank["requests"] for rank in summary["prefill"]] == [2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_no_process_shows_the_fault(start, number):
    process = start("--seconds", "60", "--fault", "ep_hold_gil")
    found = wait_for_roles(process)
    for name in ROLES:
        seen = b"".join(Path(f"/proc/{found[name]}/{part}").read_bytes() for part in ("cmdline", "environ"))
        assert b"gil" not in seen
        assert b"fault" not in seen
        assert seen.count(b"WORLD_SIZE") == (name != "decode")
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    summary = json.loads(output)
    assert summary["decode"]["requests"] == sum(rank["requests"] for rank in summary["prefill"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_dead_child_is_one_line_and_ends_the_others(start, name):
    process = start("--seconds", "60", "--fault", "ep_hold_gil")
    os.kill(wait_for_roles(process)[name], signal.SIGKILL)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output == ""
    assert errors == f"tracelens_serving: error: {name} ended with SIGKILL\n"


@pytest.mark.slow
def test_children_end_when_the_launcher_is_killed(start):
    process = start("--seconds", "60")
    wait_for_roles(process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while processes(process.tag) and time.monotonic() < deadline:
        time.sleep(0.1)
