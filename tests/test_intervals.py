"""Interval arithmetic against a naive oracle on sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens import intervals

pairs = st.lists(st.tuples(st.integers(-30, 30), st.integers(-3, 12)), max_size=12)


def as_set(rows):
    return {t for start, length in rows for t in range(start, start + length)}


def made(rows):
    return intervals.union([start for start, _ in rows], [start + length for start, length in rows])


def points(interval_set):
    return {t for start, end in zip(*interval_set, strict=True) for t in range(start, end)}


def is_normal(interval_set):
    starts, ends = interval_set
    return bool((starts < ends).all() and (starts[1:] > ends[:-1]).all())


@given(pairs)
def test_union_covers_exactly_the_given_times(rows):
    got = made(rows)
    assert points(got) == as_set(rows)
    assert is_normal(got)
    assert intervals.total(got) == len(as_set(rows))


@given(pairs, pairs)
def test_intersect_and_subtract_are_set_operations(left, right):
    a, b = made(left), made(right)
    assert points(intervals.intersect(a, b)) == as_set(left) & as_set(right)
    assert points(intervals.subtract(a, b)) == as_set(left) - as_set(right)


@given(pairs, pairs)
def test_covered_counts_the_time_of_each_window(rows, windows):
    got = intervals.covered(made(rows), [w for w, _ in windows], [w + n for w, n in windows])
    assert got.tolist() == [len(as_set(rows) & set(range(w, w + max(n, 0)))) for w, n in windows]


@given(pairs, st.lists(st.integers(-35, 50), max_size=10))
def test_contains_tells_membership(rows, times):
    assert intervals.contains(made(rows), times).tolist() == [t in as_set(rows) for t in times]


@given(st.lists(st.integers(-30, 30), max_size=20), pairs)
def test_count_inside_counts_times_in_closed_windows(times, windows):
    ordered = np.array(sorted(times), np.int64)
    got = intervals.count_inside(ordered, [w for w, _ in windows], [w + n for w, n in windows])
    assert got.tolist() == [sum(w <= t <= w + n for t in times) if n >= 0 else 0 for w, n in windows]


def test_times_of_the_unix_epoch_are_exact():
    epoch = 1_790_857_026_000_000_000
    got = intervals.union([epoch, epoch + 1], [epoch + 1, epoch + 3])
    assert (got[0].tolist(), got[1].tolist()) == ([epoch], [epoch + 3])
