"""Broken files: what can be saved is saved, what cannot is counted to the byte, and nothing ends in a traceback."""

import gzip
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyses.kineto_files import HEADER, codes, kernel, launched, load, load_text, named, op, trace_of, write
from tracelens.analyses.summary import summarize
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import chrome, json_elements, kineto
from tracelens.readers.json_elements import Elements
from tracelens.readers.json_salvage import mend, requote
from tracelens.streams import open_stream

GOOD = [op("before", 1, 2), *launched(10, 20, 5, 1), op("after", 30, 2)]


def texts(events):
    return [json.dumps(event) for event in events]


def file_of(elements, tail="]}"):
    return json.dumps(HEADER)[:-1] + ', "traceEvents": [' + ",\n".join(elements) + tail


def with_damage(bad):
    """A good file with one damaged element in the middle, and where that element begins."""
    before, *rest = texts(GOOD)
    text = file_of([before, bad, *rest])
    return text, text.index(bad)


def test_unescaped_quotes_inside_a_name_are_mended(tmp_path):
    name = 'torch/x.py, {"device": "cpu"}(12): run'
    bad = f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 100, "tid": 101, "ts": 5, "dur": 1}}'
    text, at = with_damage(bad)
    trace = load_text(tmp_path, text)
    assert trace.slices.height == 5
    assert named(trace, name)["start_ns"] == 4000
    (entry,) = [entry for entry in trace.health if entry.code == "json.mended"]
    assert (entry.severity, entry.count) == ("warning", 1)
    assert entry.where == f"trace.json: byte {at:,}"
    assert "unescaped quote" in entry.says


def test_an_element_that_cannot_be_mended_costs_only_itself(tmp_path):
    bad = '{"ph": "X", "name": "lost" "ts": {{{ , "args": [}'
    text, at = with_damage(bad)
    trace = load_text(tmp_path, text)
    assert trace.slices.height == 4
    (entry,) = [entry for entry in trace.health if entry.code == "json.damaged"]
    assert (entry.count, entry.lost_bytes, entry.where) == (1, len(bad), f"trace.json: byte {at:,}")
    assert bad[:40] in entry.says


def test_many_damaged_elements_are_listed_a_few_and_summed(tmp_path):
    bad = '{"ph": "X", "name": "lost" "ts": {{{ , "args": [}'
    elements = [part for text in texts(GOOD) for part in (text, *[bad, text] * 5)]
    trace = load_text(tmp_path, file_of(elements))
    entries = [entry for entry in trace.health if entry.code == "json.damaged"]
    assert len(entries) == 6
    assert sum(entry.count for entry in entries) == 20
    assert sum(entry.lost_bytes for entry in entries) == 20 * len(bad)
    assert trace.slices.height == 24


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "inf", "-inf", "nan", "N/A", "None", "undefined"])
def test_a_bare_word_is_no_number_and_the_event_stays(tmp_path, token):
    bad = (
        '{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "pid": 0, "tid": 7, "ts": 9, "dur": 0, '
        f'"args": {{"bytes": 64, "stream": 7, "device": 0, "memory bandwidth (GB/s)": {token}}}}}'
    )
    trace = load_text(tmp_path, with_damage(bad)[0])
    row = named(trace, "Memcpy")
    assert (row["kind"], row["bytes"], row["dur_ns"]) == ("memcpy", 64, 0)
    assert json.loads(row["args"])["memory bandwidth (GB/s)"] is None
    assert codes(trace)["json.mended"] == 1


def test_bare_hex_numbers_are_numbers(tmp_path):
    bad = (
        '{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "pid": 0, "tid": 0, "ts": 9, "dur": 1, '
        '"args": {"src": 0x7f16, "stream": 0x0, "device": 0, "correlation": 0x11}}'
    )
    trace = load_text(tmp_path, with_damage(bad)[0])
    row = named(trace, "Memcpy")
    assert row["correlation"] == 17
    assert trace.tracks.row(row["track_id"], named=True)["stream"] == 0
    assert json.loads(row["args"])["src"] == 0x7F16


def test_a_windows_path_with_bad_escapes_keeps_its_backslashes(tmp_path):
    bad = '{"ph": "X", "cat": "cpu_op", "name": "C:\\work\\x \\u12 \\ud800", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    trace = load_text(tmp_path, with_damage(bad)[0])
    assert named(trace, "C:\\work\\x \\u12 \ufffd")["dur_ns"] == 1000


def test_control_characters_in_strings_and_unknown_keys_are_tolerated(tmp_path):
    bad = '{"ph": "X", "cat": "cpu_op", "name": "two\nlines\ttab", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    text = with_damage(bad)[0].replace("{", '{"WARNING": ["text\n"], ', 1)
    trace = load_text(tmp_path, text)
    assert named(trace, "two\nlines\ttab")["dur_ns"] == 1000
    assert trace.slices.height == 5


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    bad = b'{"ph": "X", "cat": "kernel", "name": "k\x9f\xff", "pid": 0, "tid": 7, "ts": 9, "args": {"s": "\xfe"}}'
    text = with_damage("BAD")[0].encode().replace(b"BAD", bad)
    trace = load_text(tmp_path, text)
    assert named(trace, "k\ufffd\ufffd")["kind"] == "kernel"
    assert codes(trace)["bytes.not-utf8"] == 1


def test_bad_utf8_in_arguments_alone_is_counted(tmp_path):
    bad = b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 1, "args": {"s": "\xfe"}}'
    trace = load_text(tmp_path, with_damage("BAD")[0].encode().replace(b"BAD", bad))
    assert json.loads(named(trace, "k")["args"]) == {"s": "\ufffd"}
    assert codes(trace)["bytes.not-utf8"] == 1


def test_non_ascii_names_survive(tmp_path):
    trace = trace_of(tmp_path, [op("你好 µ", 1, 2)])
    path = write(tmp_path, [])
    path.write_text(json.dumps({**HEADER, "traceEvents": [op("你好 µ", 1, 2)]}, ensure_ascii=False), encoding="utf-8")
    for found in (trace, load(path)):
        assert named(found, "你好 µ")["dur_ns"] == 2000
        assert not codes(found).get("bytes.not-utf8")


@pytest.mark.parametrize("end", [",]}", ",\n ,]}", "] }\r\n", "]}\n\n"])
def test_trailing_commas_and_space_are_accepted_silently(tmp_path, end):
    trace = load_text(tmp_path, file_of(texts(GOOD), end))
    assert trace.slices.height == 4
    assert not [entry for entry in trace.health if entry.severity != "info"]


def test_trailing_comma_inside_an_event(tmp_path):
    bad = texts([op("comma", 5, 1, a=1)])[0].replace("}}", ",},}").replace("1", "1", 1)
    trace = load_text(tmp_path, with_damage(bad)[0])
    assert named(trace, "comma")["dur_ns"] == 1000


def test_byte_order_mark_and_crlf(tmp_path):
    text = json.dumps({**HEADER, "traceEvents": GOOD}, indent=2).replace("\n", "\r\n")
    trace = load_text(tmp_path, b"\xef\xbb\xbf" + text.encode())
    assert trace.slices.height == 4
    assert trace.facts.rank == 0


def test_utf16_is_refused_with_the_cure(tmp_path):
    with pytest.raises(TracelensError, match="UTF-16") as error:
        load_text(tmp_path, json.dumps(GOOD).encode("utf-16"))
    assert "iconv" in error.value.hint


@pytest.mark.parametrize("junk", ["null", "1", '"text"', "[]", "true", "[1, {}]", "3.5e2"])
def test_elements_that_are_no_objects_are_counted_and_skipped(tmp_path, junk):
    trace = load_text(tmp_path, file_of([junk, *texts(GOOD), junk]))
    assert trace.slices.height == 4
    assert codes(trace)["json.not-an-object"] == 2
    assert trace.facts.source_events == 4


@pytest.mark.parametrize("odd", ["[1]", '{"a": 1}'])
def test_members_of_an_impossible_type_count_as_absent(tmp_path, odd):
    bad = f'{{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": {odd}, "ts": 5, "dur": {odd}}}'
    trace = load_text(tmp_path, with_damage(bad)[0])
    assert named(trace, "odd")["dur_ns"] == 0
    assert codes(trace)["json.odd-member"] == 1
    assert codes(trace)["time.missing-duration"] == 1


def test_other_keys_in_any_order_and_events_not_last(tmp_path):
    parts = [f'"{key}": {json.dumps(value)}' for key, value in HEADER.items()]
    events = f'"traceEvents": {json.dumps(GOOD)}'
    nested = '"after": [[{"ph": "X"}, {"ph": "X"}], {"a": [{}, {}]}]'
    text = "{" + ", ".join([*parts[:2], events, nested, *parts[2:]]) + "}"
    trace = load_text(tmp_path, text)
    assert trace.slices.height == 4
    assert trace.facts.rank == 0
    assert trace.origin_unix_ns == HEADER["baseTimeNanoseconds"] + 1000


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_arguments_with_nested_objects_never_split_an_event(tmp_path, layout):
    rows = [op(f"op{i}", i, 1, nested=[{"ph": "X"}, {"a": [{"b": {}}, {"c": "},{"}]}]) for i in range(50)]
    trace = load_text(tmp_path, json.dumps({**HEADER, "traceEvents": rows}, **layout))
    assert trace.slices.height == 50
    assert json.loads(named(trace, "op3")["args"])["nested"][1]["a"][1]["c"] == "},{"


def test_blocks_split_anywhere_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tracelens.readers.json_window.BLOCK", 61)
    rows = [op(f"op{i}", i, 1, note="} , {", deep={"a": [{}, {"b": i}]}) for i in range(40)]
    header = {**HEADER, "text": "x" * 500}
    for indent in (None, 1):
        trace = load_text(
            tmp_path, json.dumps({**header, "traceEvents": rows, "late": [1, 2, {"a": "b"}]}, indent=indent)
        )
        assert trace.slices["name"].cast(str).to_list() == [f"op{i}" for i in range(40)]
        assert trace.facts.rank == 0


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_cut_file_keeps_every_whole_event_and_counts_the_rest(tmp_path, cut):
    text = file_of(texts(GOOD))
    last = text.index(texts(GOOD)[-1])
    trace = load_text(tmp_path, text[: last + cut])
    assert trace.slices.height == 3
    (entry,) = [entry for entry in trace.health if entry.code == "json.truncated"]
    assert (entry.severity, entry.count, entry.lost_bytes) == ("warning", 1, cut)
    assert entry.where == f"trace.json: byte {last:,}"


def test_a_file_cut_between_events_says_so(tmp_path):
    trace = load_text(tmp_path, file_of(texts(GOOD), ""))
    assert trace.slices.height == 4
    (entry,) = [entry for entry in trace.health if entry.code == "json.truncated"]
    assert (entry.severity, entry.lost_bytes) == ("warning", None)


def test_the_array_form_may_lack_its_end(tmp_path):
    trace = load_text(tmp_path, "[" + ",\n".join(texts(GOOD)), chrome.READER)
    assert trace.slices.height == 4
    assert not [entry for entry in trace.health if entry.severity != "info"]
    assert "json.no-end" in codes(trace)


def test_a_cut_gzip_keeps_what_was_decompressed(tmp_path):
    rows = [op(f"op{i}", i, 1, salt=random.Random(i).random()) for i in range(3000)]
    whole = gzip.compress(json.dumps({**HEADER, "traceEvents": rows}).encode())
    trace = load_text(tmp_path, whole[: len(whole) // 2])
    assert 500 < trace.slices.height < 3000
    assert {"json.truncated", "bytes.damaged-compression"} <= set(codes(trace))


@pytest.mark.parametrize("content", [b"", gzip.compress(b""), b"  \n "])
def test_an_empty_file_names_the_known_bug(tmp_path, content):
    with pytest.raises(TracelensError, match="empty") as error:
        load_text(tmp_path, content)
    assert "pytorch#167601" in error.value.hint


@pytest.mark.parametrize("content", [b"hello", b"\x00\x01\x02", b"<html>", b"PK\x03\x04" * 100])
def test_what_is_not_json_is_refused_in_one_line(tmp_path, content):
    with pytest.raises(TracelensError, match="not JSON at byte 0") as error:
        load_text(tmp_path, content)
    assert "\n" not in error.value.message


@pytest.mark.parametrize("content", ["{}", '{"a": [1, 2]}', '{"traceEvents": null}'])
def test_json_without_events_is_refused(tmp_path, content):
    with pytest.raises(TracelensError, match="traceEvents"):
        load_text(tmp_path, content)


def test_metadata_only_is_an_empty_trace_with_a_note(tmp_path):
    trace = trace_of(tmp_path, [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}])
    assert trace.slices.height == 0
    assert trace.facts.source_events == 1
    assert codes(trace)["trace.no-timed-events"] == 1
    assert summarize(trace)["span_ns"] is None


def test_data_after_the_end_is_counted(tmp_path):
    trace = load_text(tmp_path, file_of(texts(GOOD)) + "{}garbage")
    (entry,) = [entry for entry in trace.health if entry.code == "json.trailing-data"]
    assert entry.lost_bytes == len("{}garbage")
    assert trace.slices.height == 4


def test_a_damaged_top_level_value_does_not_cost_the_events(tmp_path):
    text = file_of(texts(GOOD)).replace("{", '{"path": "C:\\work", "number": inf, "bad" 7 : , ', 1)
    trace = load_text(tmp_path, text)
    assert trace.slices.height == 4
    assert codes(trace)["json.mended"] == 2
    assert "json.damaged-header" in codes(trace)


def test_deep_nesting_is_damage_not_a_crash(tmp_path):
    deep = '{"ph": "X", "name": "deep", "args": ' + "[" * 100_000 + "]" * 100_000 + "}"
    trace = load_text(tmp_path, file_of([texts(GOOD)[0], deep, *texts(GOOD)[1:]]))
    assert trace.slices.height == 4
    assert codes(trace)["json.damaged"] == 1


def test_mend_leaves_valid_text_alone():
    text = json.dumps({"a": [1, -2.5e3, 'x\\y"z\u00e9', {"b": None}], "c": True}).encode()
    mended = mend(text + b", more")
    assert mended.text.replace(b" ", b"") == text.replace(b" ", b"")
    assert (mended.end, mended.faults) == (len(text), frozenset())


PIECES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters='\\",}'), max_size=8), min_size=2, max_size=5)


@given(PIECES.map('"'.join))
def test_requote_restores_a_name_with_quotes(name):
    inner = json.dumps(name, ensure_ascii=False)[1:-1].replace('\\"', '"')
    mended = requote(f'{{"name": "{inner}", "pid": 1}}'.encode())
    assert json.loads(mended.text) == {"name": name, "pid": 1}
    assert mended.faults == {"unescaped quote"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["ph", "name", "args", "zz"]), JSON_VALUES), max_size=12), st.booleans()
)
def test_elements_are_those_that_json_load_finds(tmp_path_factory, elements, compact):
    path = tmp_path_factory.mktemp("same") / "t.json"
    separators = (",", ":") if compact else None
    path.write_text(json.dumps({"traceEvents": elements, "other": [elements]}, separators=separators))
    read = Elements(open_stream(path, "t", Health()), Health())
    found = [event for batch in read.batches() for event in batch]
    assert len(found) == len(elements)
    assert read.header == {"other": [elements]}
    for event, element in zip(found, elements, strict=True):
        for name in ("ph", "name"):
            if not isinstance(element.get(name), list | dict):
                assert getattr(event, name) == element.get(name)
        if "args" in element:
            assert json.loads(bytes(event.args)) == element["args"]


PATCHES = [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"NaN", b"\x00", b"\xff", b"1e999", b"-", b"9" * 30, b"\n"]


def broken(whole: bytes, dice: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(dice.choice([1, 1, 2, 5, 30])):
        if len(data) < 5:
            break
        at = dice.randrange(len(data))
        what = dice.randrange(6)
        if what == 0:
            data[at] = dice.randrange(256)
        elif what == 1:
            del data[at : at + dice.choice([1, 3, 40, 400])]
        elif what == 2:
            data[at:at] = dice.choice(PATCHES)
        elif what == 3:
            del data[at:]
        elif what == 4:
            start = dice.randrange(len(data))
            data[at:at] = data[start : start + 200]
        else:
            data[at] = dice.choice(b'{}[]",:0123456789')
    return bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_ends_in_a_traceback(tmp_path, seed):
    rows = [op("step", 0, 90), *[part for i in range(8) for part in launched(10 * i, 10 * i + 4, 3, i + 1)]]
    flows = [
        {"ph": phase, "id": i, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g"}
        for i in range(4)
        for phase, pid, tid, ts in (("s", 100, 101, 10 * i), ("f", 0, 7, 10 * i + 4))
    ]
    halves = [{"ph": phase, "name": "b", "pid": 1, "tid": 2, "ts": ts} for phase, ts in (("B", 1), ("E", 5), ("B", 7))]
    whole = json.dumps({**HEADER, "traceEvents": [*rows, *flows, *halves]}).encode()
    dice = random.Random(seed)
    for _ in range(15):
        try:
            trace = load_text(tmp_path, broken(whole, dice))
        except TracelensError as error:
            assert "\n" not in error.message
            continue
        assert trace.slices["dur_ns"].min() is None or trace.slices["dur_ns"].min() >= 0
        assert summarize(trace)["kernels"] == trace.select("kernel").height


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_every_prefix_of_a_file_is_read_or_refused(tmp_path, share):
    whole = file_of(texts(GOOD))
    start = int(share * len(whole))
    counts = []
    for end in range(start, min(start + 90, len(whole)), 4):
        try:
            counts.append(load_text(tmp_path, whole[:end]).slices.height)
        except TracelensError:
            counts.append(-1)
    assert counts == sorted(counts)


@pytest.mark.parametrize(
    "bad", ['{"ph": "X", "name": "lost" "ts": {{{ , "args": [}', '{"a":', '{"ph":"X","name":"', "]"]
)
def test_work_grows_linearly_with_damage(tmp_path, monkeypatch, bad):
    """Work is counted, not timed: bytes handed to the parser for twice the damage stay below 2.5 times."""
    handed = []
    original = json_elements._scan

    def counting(text, at=0):
        try:
            value, end = original(text, at)
        except ValueError as error:
            handed.append(getattr(error, "pos", len(text)) - at)
            raise
        handed.append(end - at)
        return value, end

    monkeypatch.setattr(json_elements, "_scan", counting)
    work = []
    for count in (2000, 4000):
        handed.clear()
        good = json.dumps(op("x", 1, 1))
        load_text(tmp_path, file_of([part for _ in range(count // 20) for part in (*[bad] * 20, good)]))
        work.append(sum(handed))
    assert 0 < work[1] <= 2.5 * work[0]


def test_sniffing_goes_by_content():
    events = json.dumps({**HEADER, "traceEvents": [kernel(1, 2)]}).encode()
    assert kineto.READER.sniff(events, "x.txt") > chrome.READER.sniff(events, "x.txt") > 0
    generic = b'[{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]'
    assert kineto.READER.sniff(generic, "x.json") == 0 < chrome.READER.sniff(generic, "x.json")
    for foreign in (
        b'[{"ph": "B", "cat": "py-spy", "name": "f", "ts": 1}]',
        b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
        b"main;f 12\n",
        b"\x0a\x12",
        b"",
    ):
        assert kineto.READER.sniff(foreign, "x.json") == 0
        assert chrome.READER.sniff(foreign, "x.json") == 0
