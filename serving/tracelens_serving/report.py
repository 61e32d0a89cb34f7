"""What a run says at its end; knows the numbers' names and nothing of how they came about."""

from __future__ import annotations

from collections.abc import Sequence


def quantiles_ms(durations_ns: Sequence[int]) -> dict[str, float] | None:
    """Return mean, p50, p90, p99 and max in ms, or None when there is nothing to describe."""
    if not durations_ns:
        return None
    ordered = sorted(durations_ns)
    last = len(ordered) - 1
    quantiles = {f"p{share}": ordered[round(last * share / 100)] for share in (50, 90, 99)}
    values = {"mean": sum(ordered) / len(ordered), **quantiles, "max": ordered[-1]}
    return {name: round(value / 1e6, 4) for name, value in values.items()}


def as_text(summary: dict) -> str:
    """Return the summary of a run for people."""
    decode = summary["decode"]
    lines = [
        f"{decode['requests']} requests, {summary['prompt_tokens']} prompt tokens, {decode['tokens']} new tokens "
        f"in {summary['wall_s']:.1f} s (start-up {summary['startup_s']:.1f} s)"
    ]
    for rank in summary["prefill"]:
        kv, dispatch = rank["kv"], rank["dispatch"]
        block, lag = kv["block_ms"], kv["lag_ms"]
        lines += [
            f"prefill rank {rank['rank']}: {rank['requests']} requests in {rank['steps']} steps, "
            f"{rank['cpu_s']:.1f} s CPU",
            f"  dispatch  {dispatch['calls']} calls, waited {dispatch['mean_wait_ms']:.2f} ms each, "
            f"{dispatch['share']:.1%} of wall",
        ]
        if block:
            lines.append(
                f"  KV        {kv['bytes'] / 1e6:.1f} MB in {kv['blocks']} blocks, "
                f"{kv['busy_mb_per_s']:.1f} MB/s while busy; "
                f"block {block['p50']:.2f} ms median, {block['p99']:.2f} ms p99; "
                f"request lag {lag['p50']:.2f} ms median, {lag['p99']:.2f} ms p99"
            )
    lines.append(
        f"decode: {decode['steps']} steps, {decode['cpu_s']:.1f} s CPU, outputs {summary['outputs_sha256'][:16]}"
    )
    return "\n".join(lines)
