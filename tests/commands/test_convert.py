"""`tracelens convert`: what it writes can be opened again, and what it refuses it refuses in two lines."""

import json
from dataclasses import replace

import polars as pl
import pytest

from tests import reports
from tests.rules.test_gil002 import synthetic
from tracelens import hookimpl, opening, plugins
from tracelens.contracts import Reader

ORIGIN = 1_790_000_000_000_000_000


def recorded():
    return replace(synthetic(), origin_unix_ns=ORIGIN)


class Given:
    """A format whose only file is a synthetic GIL recording, and a rule that finds the toy broken in it."""

    @hookimpl
    def readers(self):
        return [Reader("given", "given", lambda head, name: 100 if head == b"GIVEN" else 0, lambda *_: recorded())]


@pytest.fixture
def given(tmp_path, monkeypatch):
    load = plugins.load

    def loaded():
        made = load()
        made.manager.register(Given(), name="given")
        return made

    monkeypatch.setattr(plugins, "load", loaded)
    path = tmp_path / "run.given"
    path.write_bytes(b"GIVEN")
    return path


def opened(path):
    return opening.open_trace(str(path), plugins=plugins.load())


def test_tables_come_back_whole(cli, given, tmp_path):
    ended = cli("convert", given, "-o", tmp_path / "x.parquet")
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"tracelens: wrote {tmp_path / 'x.parquet'}\n"
    before, after = recorded(), opened(tmp_path / "x.parquet")
    for name, table in before.tables().items():
        assert after.tables()[name].equals(table), name
    assert after.facts == before.facts
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_same_trace_gives_the_same_bytes(cli, given, tmp_path):
    for name in ("a.parquet", "b.parquet"):
        assert cli("convert", given, "-o", tmp_path / name).code == 0
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_perfetto_has_the_slices_and_the_probe_as_a_counter(cli, given, tmp_path):
    assert cli("convert", given, "-o", tmp_path / "x.pftrace").code == 0
    before, after = recorded(), opened(tmp_path / "x.pftrace")
    columns = ["dur_ns", "name", "kind", "file", "line"]
    for thread in (9, 10):
        rows = [
            trace.slices.join(trace.tracks.filter(trace.tracks["thread_id"] == thread), on="track_id", how="semi")
            .sort("start_ns", "dur_ns")
            .select(pl.col("start_ns") + trace.origin_unix_ns, *columns)
            .rows()
            for trace in (before, after)
        ]
        assert [list(map(str, row)) for row in rows[0]] == [list(map(str, row)) for row in rows[1]]
    waits = (before.ticks["late_ns"] - before.ticks["run_delay_ns"]).clip(0).cast(float)
    assert after.counters["value"].to_list() == waits.to_list()
    assert (after.counters["at_ns"] + after.origin_unix_ns - ORIGIN).to_list() == before.ticks["at_ns"].to_list()
    (track,) = after.tracks.filter(after.tracks["kind"] == "counter").iter_rows(named=True)
    assert (track["name"], track["unit"]) == ("wait for the GIL", "ns")


@pytest.mark.parametrize("suffix", ["pftrace", "parquet"])
def test_findings_become_tracks(cli, given, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr("tracelens.analyzing.analyze", lambda *_: reports.report(findings=(reports.gil_finding(),)))
    finding = reports.gil_finding()
    ended = cli("convert", given, "-o", tmp_path / f"x.{suffix}", "--with-findings")
    assert ended.code == 0
    assert "1 findings added" in ended.err
    trace = opened(tmp_path / f"x.{suffix}")
    (track,) = trace.tracks.filter(trace.tracks["name"] == f"{finding.rule} {finding.name}").iter_rows(named=True)
    rows = trace.slices.filter(trace.slices["track_id"] == track["track_id"]).rows(named=True)
    shift = trace.origin_unix_ns - ORIGIN
    assert [(row["start_ns"] + shift, row["dur_ns"]) for row in rows] == [
        (window.start_ns, window.end_ns - window.start_ns) for window in finding.where.windows
    ]
    said = json.loads(rows[0]["args"])
    assert (said["finding"], said["severity"]) == (finding.message, finding.severity)
    assert rows[0]["name"] == f"{finding.rule}: {finding.where.function}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "x.json"), "no format is called '.json'"),
        (("-o", "x"), "no format is called 'nothing'"),
        (("-o", "there.parquet"), "there.parquet: exists"),
        (("-o", "absent/x.parquet"), "absent/x.parquet: no such file or directory"),
        ((), "-o/--output"),
    ],
)
def test_what_it_refuses(cli, given, tmp_path, arguments, said):
    (tmp_path / "there.parquet").write_text("precious")
    ended = cli("convert", given, *arguments)
    assert ended.code == 2
    error, hint = ended.err.splitlines()
    assert said in error
    assert hint.startswith("hint: ")
    assert (tmp_path / "there.parquet").read_text() == "precious"


def test_force_overwrites(cli, given, tmp_path):
    (tmp_path / "x.parquet").write_text("old")
    assert cli("convert", given, "-o", "x.parquet", "--force").code == 0
    assert opened(tmp_path / "x.parquet").slices.height == synthetic().slices.height


def test_what_perfetto_cannot_hold_is_said(cli, toy, tmp_path):
    ended = cli("convert", toy, "-o", "x.pftrace")
    assert ended.code == 0
    assert "Perfetto has no place for 1 measurements" in ended.err
