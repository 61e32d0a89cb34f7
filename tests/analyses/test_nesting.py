"""Parents, depths and self time against definitions written out the slow way."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analyses import nesting

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def nested(spans):
    track, start, dur = (np.array([span[i] for span in spans], np.int64) for i in range(3))
    order = nesting.order(track, start, dur)
    track, start, dur = track[order], start[order], dur[order]
    return track, start, dur, *nesting.nest(track, start, dur)


@given(SPANS)
def test_the_parent_is_the_nearest_slice_that_contains_one(spans):
    track, start, dur, parent, depth = nested(spans)
    end = start + dur
    for i in range(len(spans)):
        holders = [j for j in range(i) if track[j] == track[i] and end[j] >= end[i] and end[j] > start[i]]
        assert parent[i] == (holders[-1] if holders else -1)
        assert depth[i] == (0 if parent[i] < 0 else depth[parent[i]] + 1)


@given(SPANS)
def test_self_time_is_what_no_child_covers(spans):
    _, start, dur, parent, _ = nested(spans)
    found = nesting.self_time(parent, start, dur)
    for i in range(len(spans)):
        children = [set(range(start[j], start[j] + dur[j])) for j in np.flatnonzero(parent == i)]
        assert found[i] == len(set(range(start[i], start[i] + dur[i])) - set().union(*children))


def test_self_time_over_spans_too_long_to_lie_side_by_side():
    far = 1 << 61
    start, dur = np.array([0, 0, 10, 5, far - 100, far - 50]), np.array([100, 20, 30, 2, 90, 10])
    parent = np.array([-1, 0, 0, 1, -1, 4])
    assert nesting.self_time(parent, start, dur).tolist() == [60, 18, 30, 2, 80, 10]


def test_time_is_linear_in_overlapping_slices():
    """A staircase of overlapping slices leaves one open slice at a time: the stack never grows."""
    count = 20_000
    start = np.arange(count)
    parent, depth = nesting.nest(np.zeros(count), start, np.full(count, count))
    assert (parent == -1).all()
    assert (depth == 0).all()


def test_depth_stays_within_its_column():
    count = nesting.MAX_DEPTH + 10
    _, depth = nesting.nest(np.zeros(count), np.zeros(count), np.full(count, 5))
    assert depth.max() == nesting.MAX_DEPTH
