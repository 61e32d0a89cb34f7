"""py-spy's clock from beacons: synthetic recordings whose true offset is known."""

import random

import pytest

from tracelens.recorders.align import EXIT_HALFWIDTH_NS, align, sightings

TRUE_OFFSET_NS = 1_800_000_123_456_789
MS = 1_000_000


def beacons(count=48, start_ns=TRUE_OFFSET_NS + 50 * MS):
    """Pieces of 1 ms, six in a row, then a pause, as the recorder makes them."""
    made, at = {}, start_ns
    for index in range(count):
        made[index] = (at, at + MS)
        at += MS + (13 * MS if index % 6 == 5 else 20_000)
    return made


def seen(logged, rate_hz=250, jitter_ns=0, seed=1):
    """What a sampler at this rate sees of them, on its own clock, each sample stamped up to `jitter_ns` late."""
    chance = random.Random(seed)
    period = round(1e9 / rate_hz)
    rows = []
    first, last = logged[0][0], max(end for _, end in logged.values())
    for at in range(first + chance.randrange(period), last, period):
        for index, (start, end) in logged.items():
            if start <= at < end:
                rows.append((index, at - TRUE_OFFSET_NS + chance.randrange(jitter_ns + 1)))
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_the_offset_is_found_within_what_it_claims(seed):
    logged = beacons()
    found = align(logged, seen(logged, seed=seed), 0, 0)
    assert found.how == "beacons"
    assert abs(found.offset_ns - TRUE_OFFSET_NS) <= found.halfwidth_ns


@pytest.mark.parametrize("seed", range(20))
def test_late_stamps_stay_within_the_half_width(seed):
    logged = beacons()
    found = align(logged, seen(logged, jitter_ns=700_000, seed=seed), 0, 0)
    assert abs(found.offset_ns - TRUE_OFFSET_NS) <= found.halfwidth_ns + 700_000


def test_missing_beacons_widen_the_answer_and_two_are_enough():
    logged = beacons()
    two = seen(logged)[:2]
    assert len(two) == 2
    found = align(logged, two, 0, 0)
    assert (found.how, found.beacons) == ("beacons", 2)
    assert abs(found.offset_ns - TRUE_OFFSET_NS) <= found.halfwidth_ns


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_beacons_fall_back_to_the_exit(count):
    logged = beacons()
    found = align(logged, seen(logged)[:count], exit_ns=9_000 * MS, last_own_ns=4_000 * MS)
    assert found == (5_000 * MS, EXIT_HALFWIDTH_NS, "exit", count)


def test_a_stray_sighting_does_not_move_the_answer():
    logged = beacons()
    stray = (3, logged[3][0] - TRUE_OFFSET_NS + 400 * MS)
    clean = align(logged, seen(logged), 0, 0)
    assert align(logged, [stray, *seen(logged), (99, 5)], 0, 0) == clean


def test_contradicting_beacons_are_no_alignment():
    logged = beacons()
    apart = [(0, 10 * MS), (20, 900 * MS)]
    assert align(logged, apart, 50 * MS, 40 * MS).how == "exit"


def test_equally_good_places_are_all_covered():
    logged = {0: (0, MS), 1: (100 * MS, 101 * MS)}
    twice = [(0, 0), (1, 100 * MS), (0, 50 * MS), (1, 150 * MS)]
    found = align(logged, twice, 0, 0)
    assert found.offset_ns - found.halfwidth_ns <= -49 * MS
    assert found.offset_ns + found.halfwidth_ns >= 0


def test_sightings_are_the_beginnings_of_beacon_frames():
    events = [
        {"ph": "B", "name": "_tracelens_beacon_7", "ts": 1.5},
        {"ph": "E", "name": "_tracelens_beacon_7", "ts": 2},
        {"ph": "B", "name": "_tracelens_beacon_x", "ts": 3},
        {"ph": "B", "name": "run", "ts": 4},
        {"ph": "M"},
    ]
    assert sightings(events) == [(7, 1500)]
