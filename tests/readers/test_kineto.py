"""Torch profiler files: clocks, links, tracks and the oddities people met, each with its right value."""

import json
import tracemalloc

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyses.kineto_files import (
    HEADER,
    HOST,
    MAIN,
    annotation,
    codes,
    copy,
    event,
    kernel,
    launched,
    load_text,
    named,
    op,
    parent_name,
    python,
    runtime,
    trace_of,
)
from tracelens.analyses.summary import summarize
from tracelens.readers.json_event import EXACT_BELOW
from tracelens.readers.json_kinds import kind_of
from tracelens.readers.json_times import NEVER, nanoseconds
from tracelens.schema import TABLES


def launch_pairs(trace):
    names = dict(trace.slices.select("slice_id", pl.col("name").cast(pl.String)).iter_rows())
    return sorted((names[a], names[b]) for a, b, kind in trace.flows.iter_rows() if kind == "launch")


# Clocks ---------------------------------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 43) * 1000 - 1))
def test_relative_times_are_exact_through_floats(ns):
    micros = float(f"{ns // 1000}.{ns % 1000:03d}")
    assert micros < EXACT_BELOW
    assert nanoseconds([micros, None]).tolist() == [ns, NEVER]


@given(st.integers(10**18, 2 * 10**18))
def test_epoch_times_are_exact_from_their_digits(ns):
    text = f"{ns // 1000}.{ns % 1000:03d}"
    assert nanoseconds([text]).tolist() == [ns]
    assert nanoseconds([ns // 1000]).tolist() == [ns // 1000 * 1000]


@pytest.mark.parametrize("value", [None, "x", "nan", "inf", 1e300, -1e300, 2**70, "1e999999999", float("nan")])
def test_unusable_times_are_never(value):
    assert nanoseconds([value, 1, 2.5]).tolist() == [NEVER, 1000, 2500]


def test_scientific_notation_keeps_children_inside_their_parents(tmp_path):
    events = [op("parent", 1, 1), op("child", 1, 1)]
    text = json.dumps({"schemaVersion": 1, "traceEvents": events})
    text = text.replace('"ts": 1, "dur": 1', '"ts": 1.6921085481321545e+15, "dur": 0.4', 1)
    text = text.replace('"ts": 1, "dur": 1', '"ts": 1.6921085481321546e+15, "dur": 0.3', 1)
    trace = load_text(tmp_path, text)
    assert trace.origin_unix_ns == 1_692_108_548_132_154_500
    assert (named(trace, "child")["start_ns"], named(trace, "child")["dur_ns"]) == (100, 300)
    assert parent_name(trace, "child") == "parent"


def test_origin_is_the_base_plus_the_first_time(tmp_path):
    trace = trace_of(tmp_path, [op("b", 4909914216204.635, 1), op("a", 4909914216203.001, 1)])
    assert trace.origin_unix_ns == HEADER["baseTimeNanoseconds"] + 4909914216203001
    assert named(trace, "b")["start_ns"] == 1634


def test_absolute_files_carry_their_own_origin(tmp_path):
    header = {key: value for key, value in HEADER.items() if key != "baseTimeNanoseconds"}
    text = json.dumps({**header, "traceEvents": [op("a", 0, 1), op("b", 0, 1)]})
    text = text.replace('"ts": 0', '"ts": 1712195495406752.797', 1).replace('"ts": 0', '"ts": 1712195495406753.001')
    trace = load_text(tmp_path, text)
    assert trace.origin_unix_ns == 1712195495406752797
    assert named(trace, "b")["start_ns"] == 204


def test_a_relative_clock_without_base_is_unknown(tmp_path):
    header = {key: value for key, value in HEADER.items() if key != "baseTimeNanoseconds"}
    trace = trace_of(tmp_path, [op("a", 5, 1)], header)
    assert trace.origin_unix_ns is None
    assert codes(trace)["clock.unknown"] == 1


@pytest.mark.parametrize("unit", ["ms", "ns", None])
def test_display_unit_changes_nothing(tmp_path, unit):
    header = (
        {**HEADER, "displayTimeUnit": unit} if unit else {k: v for k, v in HEADER.items() if k != "displayTimeUnit"}
    )
    trace = trace_of(tmp_path, launched(1, 10, 2.5, 1), header)
    assert named(trace, "gemm_kernel")["dur_ns"] == 2500


def test_work_without_a_time_counts_and_stretches_nothing(tmp_path):
    base = 1428625731456.483
    events = [
        *launched(base, base + 10, 5, 1),
        runtime("cudaLaunchKernel", base + 2, 1, 2),
        kernel(0, 0, 2, "unplaced"),
        kernel(0, 0, 99, "unplaced and unlinked"),
    ]
    trace = trace_of(tmp_path, events)
    summary = summarize(trace)
    assert (summary["kernels"], summary["kernel_total_ns"]) == (3, 5000)
    assert summary["span_ns"] == summarize(trace_of(tmp_path, events[:3]))["span_ns"] == 15000
    assert summary["gpu_window_ns"] == 5000
    assert codes(trace)["time.unplaced"] == 2
    assert ("cudaLaunchKernel", "unplaced") in launch_pairs(trace)


def test_time_zero_is_a_time_where_the_others_are_near_it(tmp_path):
    trace = trace_of(tmp_path, [kernel(0, 0, name="first"), kernel(5, 2)])
    assert "time.unplaced" not in codes(trace)
    assert named(trace, "first")["start_ns"] == 0


@pytest.mark.parametrize("dur", [-5, -4909914216204.635])
def test_negative_durations_are_clamped_and_counted(tmp_path, dur):
    trace = trace_of(tmp_path, [op("bad", 4909914216204.635, dur), op("good", 4909914216205, 1)])
    assert named(trace, "bad")["dur_ns"] == 0
    assert codes(trace)["time.negative-duration"] == 1
    assert summarize(trace)["span_ns"] == 1365


def test_kernels_of_no_length_count_and_add_nothing(tmp_path):
    trace = trace_of(tmp_path, [kernel(5, 0, name="zero"), kernel(6, 4)])
    summary = summarize(trace)
    assert (summary["kernels"], summary["gpu_busy_ns"], summary["gpu_window_ns"]) == (2, 4000, 5000)


def test_a_length_that_runs_into_the_next_rows_is_cut_there(tmp_path):
    trace = trace_of(tmp_path, [kernel(100, 1.6e6, name="k0"), kernel(180, 80, name="k1")])
    assert named(trace, "k0")["dur_ns"] == 80_000
    (entry,) = [entry for entry in trace.health if entry.code == "time.clipped"]
    assert (entry.severity, entry.count, entry.lost_ns) == ("warning", 1, 1_600_000_000 - 80_000)
    assert summarize(trace)["gpu_busy_ns"] == 160_000


def test_overlaps_that_can_be_true_are_kept(tmp_path):
    rows = [kernel(3, 3.776, name="A"), kernel(5, 2, name="B")]
    trace = trace_of(tmp_path, [*rows, kernel(20, 5000, name="ncclDevKernel_AllReduce"), kernel(30, 10, name="C")])
    summary = summarize(trace)
    assert summary["kernels"] == 4
    assert summary["kernel_total_ns"] == 3776 + 2000 + 5_000_000 + 10_000
    assert summary["gpu_busy_ns"] == 4000 + 5_000_000
    assert codes(trace)["time.stream-overlap"] == 2
    assert "time.clipped" not in codes(trace)


def test_touching_kernels_leave_neither_gap_nor_overlap(tmp_path):
    rows = [part for i in range(50) for part in launched(0.01 * i, 10 + 2 * i, 2, i + 1, launch_dur=0.005)]
    summary = summarize(trace_of(tmp_path, rows))
    assert summary["gpu_busy_ns"] == summary["gpu_window_ns"] == 100_000
    assert sum(summary["gpu_idle_ns"].values()) == 0


# Nesting and places ---------------------------------------------------------------------------------------------------


def test_of_slices_with_one_start_the_longest_is_the_parent(tmp_path):
    trace = trace_of(tmp_path, [op("child", 5, 2), op("parent", 5, 9), op("grandchild", 5, 1)])
    assert parent_name(trace, "child") == "parent"
    assert parent_name(trace, "grandchild") == "child"
    assert [named(trace, name)["depth"] for name in ("parent", "child", "grandchild")] == [0, 1, 2]


def test_what_outlives_its_caller_belongs_to_the_nearest_slice_that_holds_it(tmp_path):
    trace = trace_of(tmp_path, [op("G", 0, 100), op("D", 10, 20), runtime("hipLaunchKernel", 25, 10, 1)])
    assert parent_name(trace, "hipLaunchKernel") == "G"


def test_an_annotation_that_crosses_a_python_frame_keeps_its_kernels(tmp_path):
    rows = [python("f.py(1): f", 0, 100), annotation("mine", 98, 50), *launched(99, 120, 5, 1, launch_dur=0.5)]
    trace = trace_of(tmp_path, rows)
    assert trace.slices.height == 4
    assert parent_name(trace, "mine") is None
    assert parent_name(trace, "cudaLaunchKernel") == "mine"


def test_python_names_give_file_line_and_module(tmp_path):
    names = [
        "/a b/model.py(12): forward",
        "nn.Module: Linear_0",
        "<built-in method add of X object at 0x7f>",
        "<string>(1): <module>",
    ]
    trace = trace_of(tmp_path, [python(name, i, 0.5) for i, name in enumerate(names)])
    found = [tuple(named(trace, name)[column] for column in ("file", "line", "module")) for name in names]
    assert found == [("/a b/model.py", 12, None), (None, None, "Linear_0"), (None, None, None), ("<string>", 1, None)]
    assert summarize(trace)["python_functions"] == 4


def test_frames_open_at_the_start_are_no_thread_track(tmp_path):
    trace = trace_of(tmp_path, [python("threading.py(1): _bootstrap", 0, 99, tid=0, pid=0), python("f.py(1): f", 1, 5)])
    kinds = trace.tracks.select(pl.col("kind").cast(pl.String), "thread_id").rows()
    assert sorted(kinds) == [("process", 0), ("thread", MAIN)]
    assert parent_name(trace, "f.py(1): f") is None
    assert summarize(trace)["threads"] == 2


def test_stream_rows_make_no_threads(tmp_path):
    rows = [
        op("a", 0, 1),
        kernel(5, 1, stream=7),
        copy(6, 1, stream=13),
        event("gpu_user_annotation", "step", 5, 2, 7, 0),
        event("cuda_sync", "Stream Wait Event", 5, 0, 20, 0, stream=20, device=0),
        event("overhead", "Activity Buffer Request", 1, 1, 0, -1),
        event("Trace", "PyTorch Profiler (0)", 0, 20, "PyTorch Profiler", "Spans"),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 50},
    ]
    summary = summarize(trace_of(tmp_path, rows))
    assert (summary["threads"], summary["streams"], summary["devices"]) == (1, 2, 1)
    assert summary["span_ns"] == 20_000


def test_text_and_number_are_one_stream(tmp_path):
    rows = [
        event("kernel", "a", 1, 1, "0", 0, device=0, stream="0"),
        event("kernel", "b", 3, 1, 0, 0, device="0", stream=0),
        event("kernel", "c", 5, 1, 0, 0, device=0, stream="0x0"),
        event("kernel", "d", 7, 1, 7, 0, device=0, stream=7),
    ]
    trace = trace_of(tmp_path, rows)
    assert summarize(trace)["streams"] == 2
    assert trace.tracks["stream"].sort().to_list() == [0, 7]
    assert codes(trace)["ids.text"] == 3


def test_merged_ranks_stay_apart(tmp_path):
    rows = []
    for rank in (0, 1):
        label = f"[TP{rank:02d}-DP00-PP00-EP00]"
        rows += [
            runtime("cudaLaunchKernel", 1 + rank, 1, 5, MAIN, f"{label} {83 + rank}"),
            event("kernel", f"k{rank}", 10, 5, 7, f"{label} 0", device=0, stream=7, correlation=5),
        ]
    trace = trace_of(tmp_path, rows, {key: value for key, value in HEADER.items() if key != "distributedInfo"})
    hosts = trace.tracks.filter(pl.col("kind") == "thread").sort("rank")
    assert hosts.select("process_id", "rank").rows() == [(83, 0), (84, 1)]
    streams = trace.tracks.filter(pl.col("kind") == "stream").sort("rank")
    assert streams.select("device", "rank").rows() == [(0, 0), (0, 1)]
    launches = dict(trace.slices.select("slice_id", "start_ns").iter_rows())
    assert {launches[a] for a in trace.flows["from_id"]} == {0, 1000}
    assert summarize(trace)["devices"] == 2
    assert trace.facts.parallelism == "TP2 DP1 PP1 EP1"
    assert codes(trace)["rank.merged"] == 2


def test_pids_of_any_sort_are_accepted(tmp_path):
    pids = [-1, "worker", "worker 12", "other 12", 2**70, 1.5, None, True]
    trace = trace_of(tmp_path, [event("cpu_op", f"op{i}", i, 1, 1, pid) for i, pid in enumerate(pids)])
    assert trace.slices.height == len(pids)
    assert trace.tracks["process_id"].null_count() == 0
    assert trace.tracks.filter(pl.col("process") == "worker 12")["process_id"].item() < 0


# Links ----------------------------------------------------------------------------------------------------------------


def flow(phase, ident, ts, tid, pid):
    return {"ph": phase, "id": ident, "pid": pid, "tid": tid, "ts": ts, "cat": "ac2g", "name": "ac2g", "bp": "e"}


def test_half_a_flow_is_enough_with_a_correlation(tmp_path):
    rows = [*launched(1, 10, 5, 42), flow("f", 42, 10, 7, 0)]
    assert launch_pairs(trace_of(tmp_path, rows)) == [("cudaLaunchKernel", "gemm_kernel")]


def test_flow_events_link_where_rows_have_no_correlation(tmp_path):
    rows = [runtime("cudaLaunchKernel", 1, 2), kernel(10, 5), flow("s", 42, 1, MAIN, HOST), flow("f", 42, 10, 7, 0)]
    assert launch_pairs(trace_of(tmp_path, rows)) == [("cudaLaunchKernel", "gemm_kernel")]


@pytest.mark.parametrize("correlation", [-1, 0, None])
def test_no_correlation_links_nothing(tmp_path, correlation):
    rows = [runtime("cudaLaunchKernel", i, 0.5, correlation) for i in range(50)]
    rows += [kernel(100 + i, 0.5, correlation) for i in range(50)]
    trace = trace_of(tmp_path, rows)
    assert trace.flows.height == 0
    assert summarize(trace)["launches_matched"] == 0
    assert codes(trace)["link.kernels-without-launch"] == 50


@pytest.mark.parametrize("correlation", [-1, 7])
def test_memory_is_linear_where_everything_has_one_correlation(tmp_path, correlation):
    def peak(count):
        rows = [runtime("cudaLaunchKernel", i, 0.5, correlation) for i in range(count)]
        rows += [kernel(count + i, 0.5, correlation) for i in range(count)]
        tracemalloc.start()
        trace = trace_of(tmp_path, rows)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used, trace

    (small, _), (large, trace) = peak(1000), peak(2000)
    assert trace.flows.height == 0
    assert large < 2.5 * small
    assert codes(trace).get("link.ambiguous", 0) == (2000 if correlation == 7 else 0)


def test_of_nested_calls_with_one_correlation_the_inner_launches(tmp_path):
    rows = [
        runtime("hipLaunchKernel", 1, 9, 5),
        runtime("hipModuleLaunchKernel", 2, 3, 5),
        kernel(20, 5, 5),
    ]
    assert launch_pairs(trace_of(tmp_path, rows)) == [("hipModuleLaunchKernel", "gemm_kernel")]


def test_two_processes_with_equal_correlations_are_told_apart_by_device(tmp_path):
    rows = []
    for index, pid in enumerate((200, 300)):
        rows += [
            runtime(f"launch{pid}", 1, 1, 5, pid, pid),
            runtime(f"only{pid}", 3, 1, 10 + index, pid, pid),
            kernel(10, 1, 5, f"shared{index}", device=index),
            kernel(20, 1, 10 + index, f"single{index}", device=index),
        ]
    trace = trace_of(tmp_path, rows)
    assert ("launch200", "shared0") in launch_pairs(trace)
    assert ("launch300", "shared1") in launch_pairs(trace)
    assert len(launch_pairs(trace)) == 4


def test_forward_backward_flows_are_asynchronous(tmp_path):
    rows = [op("fwd", 1, 5), op("bwd", 20, 5, tid=102)]
    rows += [{**flow("s", 1, 2, MAIN, HOST), "cat": "fwdbwd"}, {**flow("f", 1, 21, 102, HOST), "cat": "fwdbwd"}]
    trace = trace_of(tmp_path, rows)
    (row,) = trace.flows.iter_rows()
    assert row == (named(trace, "fwd")["slice_id"], named(trace, "bwd")["slice_id"], "async")


# Kernels, graphs, counters --------------------------------------------------------------------------------------------


def test_launch_geometry(tmp_path):
    args = {"grid": [4, 2, 1], "block": [128, 1, 1], "registers per thread": 40, "shared memory": 1024, "graph id": 3}
    trace = trace_of(tmp_path, [kernel(1, 1, **args, **{"graph node id": 9}), kernel(3, 1, name="bare", grid=[1, 2])])
    first, bare = trace.launches.iter_rows(named=True)
    assert [first[k] for k in ("grid_x", "grid_y", "grid_z", "block_x", "registers", "shared_bytes")] == [
        4,
        2,
        1,
        128,
        40,
        1024,
    ]
    assert (first["graph_id"], first["graph_node_id"]) == (3, 9)
    assert bare["grid_x"] is None


def test_kernels_of_one_graph_launch_share_it_and_have_no_op(tmp_path):
    rows = [op("replay", 0, 20), runtime("hipGraphLaunch", 1, 10, 7)]
    rows += [kernel(20 + i, 0.9, 7, f"k{i}") for i in range(100)]
    trace = trace_of(tmp_path, rows)
    summary = summarize(trace)
    assert (summary["graph_launches"], summary["launches_matched"], summary["kernels"]) == (1, 100, 100)
    assert set(trace.launches["attribution"]) == {"none"}
    assert codes(trace)["graph.replayed"] == 100


def test_memory_instants_become_counters(tmp_path):
    row = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": MAIN, "ts": 5}
    args = {"Total Allocated": 100, "Total Reserved": 200, "Bytes": -5, "Device Type": 1, "Device Id": 0}
    trace = trace_of(tmp_path, [op("a", 0, 9), {**row, "args": args}])
    counters = trace.counters.join(trace.tracks, on="track_id").sort("value")
    assert counters.select("name", "unit", "at_ns", "value").rows() == [
        ("memory allocated (CUDA 0)", "bytes", 5000, 100.0),
        ("memory reserved (CUDA 0)", "bytes", 5000, 200.0),
    ]
    assert named(trace, "[memory]")["kind"] == "instant"
    assert parent_name(trace, "[memory]") == "a"


def test_facts_of_the_header(tmp_path):
    header = {
        **HEADER,
        "with_stack": 1,
        "record_shapes": 0,
        "cuda_runtime_version": 13000,
        "host_name": "node7",
        "distributedInfo": {
            "backend": "nccl",
            "rank": 3,
            "world_size": 8,
            "nccl_version": "2.28.9",
            "pg_config": [[1]],
        },
    }
    trace = trace_of(tmp_path, launched(1, 10, 5, 1), header)
    facts = trace.facts
    assert (facts.rank, facts.world_size, facts.backend, facts.host) == (3, 8, "nccl", "node7")
    assert facts.versions == {"cuda_runtime": "13000", "nccl": "2.28.9"}
    assert facts.profiler == {"gpu": True, "stacks": True, "shapes": False}
    assert [(d.index, d.name, d.multiprocessors) for d in facts.devices] == [(0, "Test GPU", 8)]
    assert set(trace.tracks["rank"]) == {3}
    assert set(trace.tracks["host"]) == {"node7"}


@pytest.mark.parametrize("odd", [None, 5, "x", [], [1], {"rank": "x"}, {"rank": -1}, {"rank": 2**40}, {"rank": [1]}])
def test_odd_headers_say_nothing(tmp_path, odd):
    header = {"deviceProperties": odd, "distributedInfo": odd, "baseTimeNanoseconds": odd, "host_name": odd}
    trace = trace_of(tmp_path, launched(1, 10, 5, 1), header)
    assert trace.facts.rank is None
    assert codes(trace)["rank.unknown"] == 1
    assert trace.slices.height == 2


def test_a_cpu_only_recording_says_so(tmp_path):
    header = {**HEADER, "deviceProperties": [], "distributedInfo": {"rank": 0, "pg_config": [[1, [2]], {"a": []}]}}
    trace = trace_of(tmp_path, [op("a", 0, 1)], header)
    summary = summarize(trace)
    assert codes(trace)["device.none"] == 1
    assert (summary["gpu_window_ns"], summary["gpu_idle_ns"], summary["devices"]) == (None, None, 0)


@pytest.mark.parametrize(("category", "name"), [("mtia_runtime", "MTIA"), ("hpu_op", "HPU"), ("async_npu", "NPU")])
def test_other_accelerators_load_and_say_what_they_lack(tmp_path, category, name):
    trace = trace_of(tmp_path, [op("a", 0, 1), event(category, "x", 1, 1)])
    (entry,) = [entry for entry in trace.health if entry.code == "device.unreadable"]
    assert name in entry.says
    assert trace.slices.height == 2


@pytest.mark.parametrize(
    ("category", "kind"),
    [
        ("cpu_op", "op"),
        ("Operator", "op"),
        ("Kernel", "kernel"),
        ("cuda_driver", "runtime"),
        ("xpu_runtime", "runtime"),
        ("privateuse1_driver", "runtime"),
        ("Trace", "other"),
        ("whatever", "other"),
    ],
)
def test_kinds_come_from_categories(category, kind):
    assert kind_of(category) == kind


def test_tables_are_those_of_the_schema(tmp_path):
    rows = [annotation("ProfilerStep#1", 0, 90), op("a", 1, 5), *launched(2, 20, 5, 1), copy(40, 5, 2)]
    trace = trace_of(tmp_path, rows)
    for name, table in trace.tables().items():
        assert dict(table.schema) == dict(TABLES[name].empty().schema), name
    assert trace.slices["slice_id"].to_list() == list(range(trace.slices.height))
    assert trace.slices["start_ns"].is_sorted()
    assert named(trace, "Memcpy HtoD (Pinned -> Device)")["bytes"] == 1024


def test_phases_without_times_are_counted(tmp_path):
    rows = [{"ph": phase, "name": "x", "pid": 1, "tid": 1, "ts": 1} for phase in ("N", "O", "D", "v", "zz")]
    trace = trace_of(tmp_path, [op("a", 0, 1), *rows, {"name": "no phase"}])
    assert codes(trace)["events.other-phase"] == 6
    assert trace.facts.source_events == 7
