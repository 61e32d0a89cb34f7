"""Annotation names → engine and training steps: phase, requests and tokens, as the engine wrote them.

Knows the names that vLLM, SGLang and torch's profiler schedule give their steps, and nothing of kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from tracelens import schema

_VLLM = re.compile(
    r"\Aexecute_(?:(?P<total>\d+)_)?context_(?P<c>\d+)\((?P<ct>[^)]*)\)_generation_(?P<g>\d+)\((?P<gt>[^)]*)\)"
)
_VLLM_NEW = re.compile(r"\Aexecute_new_(?P<new>\d+)_cached_(?P<cached>\d+)\Z")
_VLLM_SUMS = re.compile(r"sq(?P<q>\d+)sk(?P<k>\d+)sqsq\d+sqsk\d+")
_SGLANG = re.compile(r"\Astep\[(?P<mode>[A-Z_]+)(?P<rest>[^\]]*)\]")
_SGLANG_PART = re.compile(r"(\w+)=(\d+)")
_PROFILER = re.compile(r"\AProfilerStep#(?P<index>\d+)\Z")
SGLANG_PHASES = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DLLM_EXTEND": "prefill",
    "MIXED": "mixed",
    "TARGET_VERIFY": "decode",
    "DRAFT_EXTEND": "draft",
    "DRAFT_EXTEND_V2": "draft",
    "DRAFT": "draft",
}
MAX_COUNT = 1 << 53


@dataclass(frozen=True)
class Said:
    """What one annotation says of its step; None where it does not."""

    engine: str | None
    phase: str
    index: int | None = None
    requests: int | None = None
    context_tokens: int | None = None
    generation_tokens: int | None = None
    kv_tokens: int | None = None


def parse(name: str) -> Said | None:
    """What an annotation's name says, None if it is no step."""
    if found := _PROFILER.match(name):
        return Said(None, "unknown", index=_count(found["index"]))
    if found := _VLLM.match(name):
        return _vllm(found)
    if found := _VLLM_NEW.match(name):
        new, cached = _count(found["new"]) or 0, _count(found["cached"]) or 0
        # Cached requests decode or go on with a chunked prefill: the name does not tell which.
        phase = "prefill" if new and not cached else "mixed" if new else "unknown"
        return Said("vllm", phase, requests=new + cached)
    if found := _SGLANG.match(name):
        return _sglang(found)
    return None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and len(text) < 17 and int(text) <= MAX_COUNT else None


def _vllm(found: re.Match[str]) -> Said:
    context, generation = _count(found["c"]) or 0, _count(found["g"]) or 0
    context_tokens, context_kv = _tokens(found["ct"])
    generation_tokens, generation_kv = _tokens(found["gt"])
    phase = "mixed" if context and generation else "prefill" if context else "decode" if generation else "unknown"
    kv = None if context_kv is None and generation_kv is None else (context_kv or 0) + (generation_kv or 0)
    return Said("vllm", phase, None, context + generation, context_tokens, generation_tokens, kv)


def _tokens(text: str) -> tuple[int | None, int | None]:
    """(tokens computed, tokens of context read) of `96` or `sq96sk4096sqsq…sqsk…`."""
    if sums := _VLLM_SUMS.match(text):
        return _count(sums["q"]), _count(sums["k"])
    return _count(text) if text.isdecimal() else None, None


def _sglang(found: re.Match[str]) -> Said:
    values = {key: _count(number) for key, number in _SGLANG_PART.findall(found["rest"])}
    mode = found["mode"]
    phase = SGLANG_PHASES.get(mode, "unknown")
    requests = values.get("bs")
    tokens = next((values[key] for key in ("toks", "tokens", "num_tokens") if key in values), None)
    if phase == "decode":
        # One token a request unless drafts are verified, whose number the name would give.
        return Said("sglang", phase, None, requests, 0, tokens if tokens is not None else _plain(mode, requests))
    return Said("sglang", phase, None, requests, tokens)


def _plain(mode: str, requests: int | None) -> int | None:
    return requests if mode == "DECODE" else None


def steps(slices: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """The steps table. An engine's step may lie in another annotation of the same step: the outermost is the step.

    A profiler step that holds engine steps is a stretch of recording, not a step, and is left out.
    """
    annotations = slices.filter(pl.col("kind") == "annotation").with_columns(pl.col("name").cast(pl.String))
    said = {name: parsed for name in annotations["name"].unique() if (parsed := parse(name)) is not None}
    if not said:
        return schema.STEPS.empty()
    rank_of = dict(tracks.select("track_id", "rank").iter_rows())
    found = annotations.filter(pl.col("name").is_in(list(said))).sort("track_id", "start_ns", pl.col("dur_ns").neg())
    rows: list[dict[str, object]] = []
    holder: dict[int, dict[str, object]] = {}
    windows: dict[int, dict[str, object]] = {}
    for track, start, dur, name in found.select("track_id", "start_ns", "dur_ns", "name").iter_rows():
        step = said[name]
        row: dict[str, object] = {
            "rank": rank_of.get(track),
            "index": step.index,
            "phase": step.phase,
            "start_ns": start,
            "dur_ns": dur,
            "requests": step.requests,
            "context_tokens": step.context_tokens,
            "generation_tokens": step.generation_tokens,
            "kv_tokens": step.kv_tokens,
            "source": name,
        }
        if step.engine is None:
            windows[track] = row
            rows.append(row)
            continue
        outer = holder.get(track)
        if outer is not None and start < _end(outer):
            for key in ("requests", "context_tokens", "generation_tokens", "kv_tokens"):
                outer[key] = row[key] if outer[key] is None else outer[key]
            if outer["phase"] == "unknown":
                outer["phase"] = row["phase"]
            continue
        holder[track] = row
        rows.append(row)
        window = windows.get(track)
        if window is not None and start < _end(window):
            window["holds_steps"] = True
    kept = [row for row in rows if not row.pop("holds_steps", False)]
    kept.sort(key=lambda row: (row["start_ns"], row["source"]))
    for number, row in enumerate(kept):
        row["step_id"] = number
        row["index"] = number if row["index"] is None else row["index"]
    return schema.STEPS.build(pl.DataFrame(kept, schema=schema.STEPS.dtypes, orient="row"))


def _end(row: dict[str, object]) -> int:
    return int(row["start_ns"]) + int(row["dur_ns"])  # type: ignore[call-overload, no-any-return]


def assign(slices: pl.DataFrame, tracks: pl.DataFrame, flows: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The slices with step_id: host slices by the step in whose window they start, GPU work by its launch.

    Steps of one process never overlap on one thread; where those of several threads do, the later one counts.
    """
    if not table.height:
        return slices
    windows = table.sort("start_ns").select(
        "step_id", "rank", "start_ns", (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")
    )
    host_tracks = tracks.filter(pl.col("kind").is_in(["thread", "process"]))["track_id"]
    host = slices.filter(pl.col("track_id").is_in(host_tracks.implode())).join(
        tracks.select("track_id", "rank"), on="track_id", how="left"
    )
    within = (
        host.select("slice_id", pl.col("start_ns").alias("at"), "rank")
        .sort("at")
        .join_asof(
            windows.sort("start_ns"),
            left_on="at",
            right_on="start_ns",
            strategy="backward",
            by="rank",
            check_sortedness=False,
        )
        if table["rank"].null_count() == 0
        else host.select("slice_id", pl.col("start_ns").alias("at"))
        .sort("at")
        .join_asof(windows.sort("start_ns"), left_on="at", right_on="start_ns", strategy="backward")
    )
    owned = within.filter(pl.col("at") < pl.col("end_ns")).select("slice_id", "step_id")
    launched = (
        flows.filter(pl.col("kind") == "launch")
        .join(owned, left_on="from_id", right_on="slice_id", how="inner")
        .select(pl.col("to_id").alias("slice_id"), "step_id")
        .unique("slice_id", keep="first")
    )
    return schema.SLICES.build(
        slices.drop("step_id").join(pl.concat([owned, launched]).unique("slice_id"), on="slice_id", how="left",
                                    maintain_order="left")
    )  # fmt: skip
