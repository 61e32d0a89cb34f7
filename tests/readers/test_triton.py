"""Triton artifacts: precisions, types and places of dots from TTIR text; metadata; damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers.mlir import MAX_DEPTH, Locations, Place
from tracelens.readers.triton import READERS
from tracelens.trace import Trace

READER, COMPANION = READERS
HEAD = """#loc = loc("/src/kern.py":8:0)
#loc10 = loc("A"(#loc))
module {
  tt.func public @chain_kernel(%A: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("A"(#loc))) {
"""
TAIL = """    tt.return loc(#loc2)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/src/kern.py":23:26)
#loc2 = loc("/src/kern.py":30:4)
#loc3 = loc("x"(#loc1))
"""
METADATA = {
    "hash": "ab" * 32,
    "target": {"backend": "cuda", "arch": 90, "warp_size": 32},
    "num_warps": 8,
    "shared": 98304,
    "name": "chain_kernel",
    "triton_version": "3.6.0",
    "default_dot_input_precision": "tf32",
}


def dot(precision: str = "", loc: str = "#loc3", a: str = "f32", b: str = "f32") -> str:
    asked = f", inputPrecision = {precision}" if precision else ""
    types = f"tensor<128x64x{a}> * tensor<64x32x{b}> -> tensor<128x32xf32>"
    return f"    %x_1 = tt.dot %m, %b, %c{asked} : {types} loc({loc})\n"


def read(tmp_path: Path, text: str, metadata: object = METADATA, name: str = "chain_kernel.ttir") -> Trace:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    if metadata is not None:
        written = metadata if isinstance(metadata, str) else json.dumps(metadata)
        (tmp_path / "chain_kernel.json").write_text(written, encoding="utf-8")
    return READER.read(Source(f"dump/{name}", path), Health())


def rows(trace: Trace) -> list[tuple[object, ...]]:
    return trace.dots.select("file", "line", "precision", "a_dtype", "b_dtype", "acc_dtype").rows()


def codes(trace: Trace) -> list[tuple[str, str, int]]:
    return [(entry.code, entry.severity, entry.count) for entry in trace.health]


@pytest.mark.parametrize(
    ("asked", "found"),
    [("tf32", "tf32"), ("tf32x3", "tf32x3"), ("bf16x3", "bf16x3"), ("bf16x6", "bf16x6"), ("", "ieee")],
)
def test_precision_is_the_attribute_and_its_absence_is_ieee(tmp_path: Path, asked: str, found: str) -> None:
    trace = read(tmp_path, HEAD + dot(asked) + TAIL)
    assert rows(trace) == [("/src/kern.py", 23, found, "f32", "f32", "f32")]
    assert codes(trace) == []


def test_artifact_has_what_the_metadata_says(tmp_path: Path) -> None:
    trace = read(tmp_path, HEAD + dot() + TAIL, {**METADATA, "n_regs": 111, "n_spills": 0})
    assert trace.artifacts.rows() == [(0, "chain_kernel", "ab" * 32, "cuda:90", 8, 98304, 111, 0)]
    assert trace.facts.versions == {"triton": "3.6.0"}


def test_registers_are_unknown_without_n_regs(tmp_path: Path) -> None:
    assert read(tmp_path, HEAD + TAIL).artifacts.select("registers", "spills").row(0) == (None, None)


def test_bf16_dots_keep_their_types(tmp_path: Path) -> None:
    trace = read(tmp_path, HEAD + dot("tf32", a="bf16", b="bf16") + dot("tf32") + TAIL)
    assert [row[2:5] for row in rows(trace)] == [("tf32", "bf16", "bf16"), ("tf32", "f32", "f32")]


def test_old_spelling_of_tf32(tmp_path: Path) -> None:
    old = "    %0 = tt.dot %m, %b, %c {allowTF32 = true, maxNumImpreciseAcc = 0 : i32} : "
    types = "tensor<16x16xf32> * tensor<16x16xf32> -> tensor<16x16xf32> loc(#loc1)\n"
    trace = read(tmp_path, HEAD + old + types + old.replace("true", "false") + types + TAIL)
    assert [row[2] for row in rows(trace)] == ["tf32", "ieee"]


def test_attributes_after_the_precision_do_not_hide_it(tmp_path: Path) -> None:
    line = dot("tf32x3").replace(" : tensor<128", " {maxNumImpreciseAcc = 32 : i32} : tensor<128")
    assert [row[2] for row in rows(read(tmp_path, HEAD + line + TAIL))] == ["tf32x3"]


@pytest.mark.parametrize(
    ("loc", "place"),
    [
        ("#loc1", ("/src/kern.py", 23)),
        ("#loc3", ("/src/kern.py", 23)),
        ('"/other.py":7:1', ("/other.py", 7)),
        ('"/other.py":7:1 to :9', ("/other.py", 7)),
        ('"h"("/other.py":7:1)', ("/other.py", 7)),
        ('callsite("/helper.py":5:3 at #loc2)', ("/helper.py", 5)),
        ('callsite("dot"(unknown) at #loc2)', ("/src/kern.py", 30)),
        ("callsite(callsite(#loc1 at #loc2) at #loc2)", ("/src/kern.py", 23)),
        ('fused["name", #loc2, #loc1]', ("/src/kern.py", 30)),
        ('fused<"tag">[#loc1]', ("/src/kern.py", 23)),
        ("unknown", (None, None)),
        ("#loc99", (None, None)),
        ('"/other.py":0:0', ("/other.py", None)),
        ('"a\\22b) loc(\\5C.py":3:1', ('a"b) loc(\\.py', 3)),
        ('"../../../etc/passwd":1:1', ("../../../etc/passwd", 1)),
        ('"/other.py":99999999999:1', (None, None)),
        ('"/other.py":7', (None, None)),
        ("#loc1 trailing", (None, None)),
    ],
)
def test_location_chain(tmp_path: Path, loc: str, place: tuple[str | None, int | None]) -> None:
    trace = read(tmp_path, HEAD + dot("tf32", loc) + TAIL)
    assert rows(trace) == [(*place, "tf32", "f32", "f32", "f32")]
    assert codes(trace) == ([("triton.dot-unplaced", "info", 1)] if place[0] is None else [])


def test_location_cycles_and_endless_chains_end() -> None:
    assert Locations(["#loc1 = loc(#loc2)", "#loc2 = loc(#loc1)"]).resolve("#loc1") is None
    chain = [f'#loc{n} = loc("n"(#loc{n + 1}))' for n in range(MAX_DEPTH * 2)]
    assert Locations(chain).resolve("#loc0") is None
    assert Locations(['#loc1 = loc("k.py":4:2)']).resolve('"n"(' * 9 + "#loc1" + ")" * 9) == Place("k.py", 4)


def test_text_that_looks_like_a_dot_is_not_one(tmp_path: Path) -> None:
    fake = '    %p = tt.load %q : tensor<1xf32> loc("tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<1xf32>":1:1)\n'
    scaled = "    %s = tt.dot_scaled %a scale %b, %c scale %d, %e lhs = e4m3 rhs = e4m3 {fastMath = false} : x\n"
    trace = read(tmp_path, HEAD + fake + scaled + dot("ieee") + TAIL)
    assert [row[2] for row in rows(trace)] == ["ieee"]
    assert codes(trace) == []


def test_unknown_form_of_a_dot_is_counted_never_guessed(tmp_path: Path) -> None:
    generic = '    %0 = "tt.dot"(%a, %b, %c) <{inputPrecision = 0 : i32}> : (tensor<16x16xf32>) -> tensor<16x16xf32>\n'
    numbered = dot("0")
    trace = read(tmp_path, HEAD + generic + numbered + dot("tf32x3") + TAIL)
    assert [row[2] for row in rows(trace)] == ["tf32x3"]
    assert codes(trace) == [("triton.dot-unreadable", "warning", 2)]
    (entry,) = trace.health
    assert entry.need == "dots"
    assert entry.where == "dump/chain_kernel.ttir: line 5 and 1 more"


def test_cut_file_keeps_what_stands_and_says_so(tmp_path: Path) -> None:
    text = HEAD + dot("tf32") + dot("tf32x3") + TAIL
    trace = read(tmp_path, text[: text.index("tf32x3") + 20])
    assert rows(trace) == [(None, None, "tf32", "f32", "f32", "f32")]
    assert codes(trace) == [
        ("triton.ttir-cut", "warning", 1),
        ("triton.dot-unreadable", "warning", 1),
        ("triton.dot-unplaced", "info", 1),
    ]


def test_cut_in_the_location_table_never_gives_a_shorter_line(tmp_path: Path) -> None:
    text = HEAD + dot("tf32", "#loc1") + TAIL
    for end in range(text.index('#loc1 = loc("/src/kern.py":23'), len(text)):
        found = rows(read(tmp_path, text[:end]))[0][:2]
        assert found in ((None, None), ("/src/kern.py", 23))


@given(st.integers(0, len(HEAD + dot("tf32") + TAIL)), st.binary(max_size=6))
def test_damage_anywhere_is_an_error_line_or_a_trace(
    tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
) -> None:
    text = (HEAD + dot("tf32") + TAIL).encode()
    path = tmp_path_factory.mktemp("damaged") / "k.ttir"
    path.write_bytes(text[:at] + junk + text[at + len(junk) :])
    try:
        trace = READER.read(Source("k.ttir", path), Health())
    except TracelensError as error:
        assert error.message.startswith("k.ttir: ")
        return
    assert trace.dots.height <= 1
    assert set(trace.dots["precision"]) <= {"tf32"} | {row for row in trace.dots["precision"] if row != "ieee"} | {
        "ieee"
    }


def test_metadata_absent_or_damaged_is_said(tmp_path: Path) -> None:
    trace = read(tmp_path, HEAD + dot() + TAIL, metadata=None)
    assert trace.artifacts.row(0) == (0, "chain_kernel", *([None] * 6))
    assert codes(trace) == [("triton.no-metadata", "info", 1)]
    trace = read(tmp_path, HEAD + dot() + TAIL, metadata='{"hash": "ab')
    assert codes(trace) == [("triton.metadata-damaged", "warning", 1)]
    assert trace.artifacts["hash"].to_list() == [None]


def test_metadata_of_wrong_types_gives_nulls(tmp_path: Path) -> None:
    wrong = {"hash": 5, "target": [], "num_warps": "4", "shared": -1, "n_regs": True, "n_spills": 2**40}
    assert read(tmp_path, HEAD + TAIL, wrong).artifacts.row(0) == (0, "chain_kernel", *([None] * 6))


def test_several_modules_or_no_kernel_is_one_clear_error(tmp_path: Path) -> None:
    text = HEAD + dot() + TAIL
    with pytest.raises(TracelensError, match="several modules"):
        read(tmp_path, text + text)
    with pytest.raises(TracelensError, match="without a kernel"):
        read(tmp_path, "module {\n  tt.func private @helper() {\n")


def test_sniffing_a_dump_folder() -> None:
    ttir = (HEAD + TAIL).encode()
    later = b'#blocked = #ttg.blocked<{}>\nmodule attributes {"ttg.num-warps" = 4 : i32} {\n  tt.func public @k() {\n'
    files = {
        "k.ttir": (ttir, (95, 0)),
        "whatever.txt": (ttir, (95, 0)),
        "k.source": (ttir, (0, 90)),
        "k.ttgir": (later, (0, 90)),
        "k.json": (json.dumps(METADATA).encode(), (0, 90)),
        "__grp__k.json": (b'{"child_paths": {"k.ttir": "/cache/k.ttir"}}', (0, 90)),
        "k.ptx": (b".version 8.7\n.target sm_90a\n.visible .entry k(\n", (0, 90)),
        "k.llir": (b'source_filename = "LLVMDialectModule"\n', (0, 90)),
        "trace.json": (b'{"schemaVersion": 1, "traceEvents": [{"name": "tt.load"}]}', (0, 0)),
        "bench.json": (b'{"machine_info": {}, "num_warps": 4}', (0, 0)),
        "empty": (b"", (0, 0)),
    }
    assert {name: (READER.sniff(head, name), COMPANION.sniff(head, name)) for name, (head, _) in files.items()} == {
        name: expected for name, (_, expected) in files.items()
    }


def test_companion_adds_facts_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "chain_kernel.json"
    path.write_text(json.dumps(METADATA))
    trace = COMPANION.read(Source("chain_kernel.json", path), Health())
    assert trace.evidence() == frozenset()
    assert trace.facts.versions == {"triton": "3.6.0"}
    assert len(trace.health) == 0
