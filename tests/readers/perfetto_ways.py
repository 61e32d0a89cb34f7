"""Read one Perfetto file in every way there is, and compare: the single-packet reader is the oracle of all others."""

from polars.testing import assert_frame_equal

from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.readers import perfetto_fast
from tracelens.readers.perfetto import read_by

FAST = {"numpy": perfetto_fast.NUMPY}
if (compiled := perfetto_fast.numba_way()) is not None:
    FAST["numba"] = compiled


def read_all(source):
    """(trace, health) of the single-packet reader, after all others were found to give the same, or its error."""
    told = outcome(perfetto_fast.GENERIC, source)
    for name, way in FAST.items():
        assert_same_outcome(told, outcome(way, source), name)
    if isinstance(told, TracelensError):
        raise told
    return told


def outcome(way, source):
    """(trace, health), or the error, of one way."""
    health = Health()
    try:
        return read_by(way, source, health), health
    except TracelensError as error:
        return error


def assert_same_outcome(told, other, name):
    """Equal tables, facts, clock and health, to the row and the byte."""
    if isinstance(told, TracelensError) or isinstance(other, TracelensError):
        assert (type(told), str(told)) == (type(other), str(other)), name
        return
    (trace, health), (same, same_health) = told, other
    assert list(health) == list(same_health), name
    assert (trace.origin_unix_ns, trace.clock_halfwidth_ns) == (same.origin_unix_ns, same.clock_halfwidth_ns), name
    assert trace.facts == same.facts, name
    for table, frame in trace.tables().items():
        assert_frame_equal(frame, same.tables()[table], categorical_as_str=True)
