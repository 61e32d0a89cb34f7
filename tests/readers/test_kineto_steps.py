"""Step annotations of engines and of torch's schedule: what they say, and which work is a step's."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyses.kineto_files import annotation, codes, launched, named, op, python, trace_of
from tracelens.readers.kineto_steps import parse

VLLM = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (VLLM, ("vllm", "decode", 32, 0, 32, 55086)),
        ("execute_context_2(96)_generation_3(3)", ("vllm", "mixed", 5, 96, 3, None)),
        ("execute_context_1(512)_generation_0(0)", ("vllm", "prefill", 1, 512, 0, None)),
        ("execute_context_0(0)_generation_0(0)", ("vllm", "unknown", 0, 0, 0, None)),
        ("execute_new_2_cached_0", ("vllm", "prefill", 2, None, None, None)),
        ("execute_new_1_cached_4", ("vllm", "mixed", 5, None, None, None)),
        ("execute_new_0_cached_4", ("vllm", "unknown", 4, None, None, None)),
        ("step[DECODE bs=32]", ("sglang", "decode", 32, 0, 32, None)),
        ("step[EXTEND bs=2 toks=1024]", ("sglang", "prefill", 2, 1024, None, None)),
        ("step[MIXED bs=5]", ("sglang", "mixed", 5, None, None, None)),
        ("step[TARGET_VERIFY bs=4]", ("sglang", "decode", 4, 0, None, None)),
        ("step[DRAFT_EXTEND bs=4]", ("sglang", "draft", 4, None, None, None)),
        ("step[SOMETHING_NEW bs=4]", ("sglang", "unknown", 4, None, None, None)),
        ("ProfilerStep#12", (None, "unknown", None, None, None, None)),
    ],
)
def test_names_that_engines_write(name, said):
    step = parse(name)
    found = (step.engine, step.phase, step.requests, step.context_tokens, step.generation_tokens, step.kv_tokens)
    assert found == said


@pytest.mark.parametrize(
    "name", ["execute", "step", "ProfilerStep#", "ProfilerStep#1x", "my step[DECODE]", "aten::mm", ""]
)
def test_other_names_are_no_steps(name):
    assert parse(name) is None


@given(st.text(alphabet="execut_onxgrai0123456789()sqk[]=DECOE #P", max_size=40))
def test_no_name_breaks_the_parser(name):
    step = parse(name)
    assert step is None or step.phase in {"prefill", "decode", "mixed", "draft", "unknown"}


def test_numbers_beyond_reason_are_unknown():
    assert parse("step[DECODE bs=" + "9" * 400 + "]").requests is None
    assert parse("ProfilerStep#" + "9" * 400).index is None


def test_profiler_steps_keep_their_numbers_and_work(tmp_path):
    rows = []
    for number in (3, 4, 5):
        at = 1000 * number
        rows.append(annotation(f"ProfilerStep#{number}", at, 900))
        for i in range(4):
            # Kernels run long after their step's window: they belong to it by correlation all the same.
            rows += launched(at + 10 * i, at + 1000 + 100 * i, 80, 10 * number + i, f"k{number}")
    trace = trace_of(tmp_path, rows)
    assert trace.steps["index"].to_list() == [3, 4, 5]
    assert set(trace.steps["rank"]) == {0}
    kernels = trace.select("kernel").group_by("step_id").agg(pl.col("dur_ns").sum()).sort("step_id")
    assert kernels.rows() == [(0, 320_000), (1, 320_000), (2, 320_000)]


def test_two_names_of_one_step_are_one_step(tmp_path):
    rows = [annotation(VLLM, 0, 100), annotation("step[DECODE bs=31]", 5, 90), annotation(VLLM, 200, 100)]
    trace = trace_of(tmp_path, rows)
    assert trace.steps.select("requests", "start_ns", "dur_ns").rows() == [(32, 0, 100_000), (32, 200_000, 100_000)]
    assert trace.steps["source"].to_list() == [VLLM, VLLM]
    assert trace.facts.engine == "vllm"


def test_an_inner_name_fills_what_the_outer_does_not_say(tmp_path):
    trace = trace_of(tmp_path, [annotation("execute_new_0_cached_4", 0, 100), annotation("step[DECODE bs=4]", 5, 90)])
    (step,) = trace.steps.iter_rows(named=True)
    assert (step["phase"], step["requests"], step["generation_tokens"]) == ("decode", 4, 4)


def test_a_profiler_step_around_engine_steps_is_no_step(tmp_path):
    rows = [
        annotation("ProfilerStep#1", 0, 1000),
        annotation("step[DECODE bs=1]", 10, 5),
        annotation("step[DECODE bs=1]", 20, 5),
    ]
    trace = trace_of(tmp_path, [*rows, annotation("ProfilerStep#2", 2000, 10)])
    assert trace.steps["source"].to_list() == ["step[DECODE bs=1]", "step[DECODE bs=1]", "ProfilerStep#2"]


def test_host_rows_belong_to_the_step_they_start_in(tmp_path):
    rows = [
        annotation("ProfilerStep#1", 100, 50),
        op("in", 120, 5),
        op("other thread", 120, 5, tid=9),
        op("after", 150, 5),
    ]
    trace = trace_of(tmp_path, [op("before", 1, 5), *rows])
    found = {name: named(trace, name)["step_id"] for name in ("before", "in", "other thread", "after")}
    assert found == {"before": None, "in": 0, "other thread": 0, "after": None}


def test_a_recording_without_steps_is_one_window(tmp_path):
    trace = trace_of(tmp_path, [op("a", 0, 1), *launched(2, 5, 1, 1)])
    assert trace.steps.height == 0
    assert codes(trace)["steps.none"] == 1


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("/w/sglang/python/sglang/srt/managers/scheduler.py", "sglang"),
        ("vllm/v1/worker/gpu_worker.py", "vllm"),
        ("x.py", None),
    ],
)
def test_the_engine_is_known_by_its_files(tmp_path, file, engine):
    assert trace_of(tmp_path, [python(f"{file}(3): run", 0, 1)]).facts.engine == engine
