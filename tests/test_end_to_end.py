"""The command on real recordings: its JSON is valid, strict and the same every time; bad input ends in two lines."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from tests.corpus_folder import corpus

SAMPLES = Path(__file__).parent.parent / "sample_traces"


def tracelens(*arguments, cwd=None):
    command = [sys.executable, "-m", "tracelens", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, cwd=cwd, timeout=120)


def strict(text):
    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def schema():
    return strict(tracelens("explain", "--schema").stdout)


@pytest.mark.parametrize("source", ["GIL001/bad.capture", "NUM001/bad", "MEM001/good", "NUM002/bad/trace.json.gz"])
def test_the_report_of_a_sample_validates_and_is_byte_equal_from_anywhere(source, schema, tmp_path):
    path = (SAMPLES / source).resolve()
    first = tracelens("analyze", path, "--json")
    again = tracelens("analyze", path, "--json", cwd=tmp_path)
    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stdout == again.stdout
    report = strict(first.stdout)
    jsonschema.Draft202012Validator(schema).validate(report)
    assert report["trace"]["summary"]["slices"] > 0


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name", ["derived_nan_inf_dur.json.gz", "derived_trunc60_midevent.json.gz", "pyspy043_raw.txt"]
)
def test_the_report_of_a_damaged_or_odd_file_validates(name, schema):
    (path,) = corpus(f"public/{name}")
    report = strict(tracelens("analyze", path, "--json").stdout)
    jsonschema.Draft202012Validator(schema).validate(report)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "TraceLens__inference__vllm_decode_full__graph_execution.json.gz",
            ("vllm", "decode 1 ×", "32 requests", "55,086 KV tokens", "99.8% of its window", "last recorded work"),
        ),
        (
            "TraceLens__inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz",
            ("sglang", "decode 1 ×", "unknown", "blocked for 463.1 ms", "256 bytes"),
        ),
    ],
)
def test_the_first_screen_of_an_engines_decode_is_filled_and_claims_no_idle(name, facts):
    (path,) = corpus(f"public/{name}")
    done = tracelens("analyze", path)
    shown = done.stdout.decode()
    assert done.returncode == 0
    assert len(shown.splitlines()) <= 30
    flat = " ".join(shown.split())
    for fact in facts:
        assert fact in flat
    assert "LCH" not in shown
    assert "findings none" in flat


TRACE = gzip.decompress((SAMPLES / "NUM002/bad/trace.json.gz").read_bytes())
BAD = {
    "empty.json": b"",
    "empty.json.gz": gzip.compress(b""),
    "binary.bin": bytes(range(256)) * 40,
    "words.json": b"not json at all",
    "object.json": b'{"a": 1}',
}


@pytest.mark.parametrize("name", [*BAD, "missing.json", "folder"])
def test_what_is_no_trace_ends_in_one_line_and_a_hint(name, tmp_path):
    path = tmp_path / name
    if name in BAD:
        path.write_bytes(BAD[name])
    elif name == "folder":
        path.mkdir()
        (path / "readme.txt").write_text("nothing")
    done = tracelens("analyze", path)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (2, b"")
    assert [line.split(":")[0] for line in lines] == ["tracelens", "hint"]
    assert name in lines[0]


def test_a_truncated_file_is_salvaged_with_its_loss_and_strict_refuses_it(tmp_path):
    path = tmp_path / "cut.json"
    path.write_bytes(TRACE[: len(TRACE) * 3 // 4])
    done = tracelens("analyze", path, "--json")
    report = strict(done.stdout)
    assert done.returncode == 0
    assert report["trace"]["summary"]["slices"] > 10
    assert [entry["lost_bytes"] > 0 for entry in report["health"] if entry["code"] == "json.truncated"] == [True]
    assert b"warning" in done.stderr
    assert tracelens("analyze", path, "--strict").returncode == 2


def test_gzip_named_json_is_read_like_the_file_it_is(tmp_path):
    (tmp_path / "a.json").write_bytes(gzip.compress(TRACE))
    (tmp_path / "b.json").write_bytes(TRACE)
    reports = [strict(tracelens("analyze", tmp_path / name, "--json").stdout) for name in ("a.json", "b.json")]
    assert reports[0]["trace"]["summary"] == reports[1]["trace"]["summary"]
    assert reports[0]["findings"] == reports[1]["findings"] != []


def test_hostile_names_and_numbers_do_no_harm(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "\x1b[31mred\x1b[0m\n[bold]x", "pid": 0, "tid": 7, "ts": 1}
    args = {"stream": 7, "device": 0, "correlation": 1}
    events = [
        {**kernel, "dur": 10**30, "args": args},
        {**kernel, "pid": 2**70, "ts": -5e300, "dur": 3, "args": args},
        {**kernel, "ts": 5, "dur": 2, "args": {**args, "bytes": -(10**40)}},
    ]
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    shown = tracelens("analyze", path)
    assert shown.returncode == 0
    assert b"\x1b" not in shown.stdout + shown.stderr
    report = strict(tracelens("analyze", path, "--json").stdout)
    assert report["trace"]["summary"]["kernel_total_ns"] < 10**15
