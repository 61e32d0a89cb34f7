"""Our saved form: every trace of the corpus comes back equal, and a file that was tampered with is one clear error."""

import io
import json
import random
import zipfile

import polars as pl
import pytest

from tests.corpus_folder import corpus
from tests.rules.test_gil002 import synthetic
from tracelens import opening, plugins
from tracelens.analyzing import analyze
from tracelens.config import Config
from tracelens.contracts import Source
from tracelens.errors import TracelensError
from tracelens.health import Health
from tracelens.presenters.tables import write_tables
from tracelens.readers.parquet import HEAD, READER


def saved(trace, path):
    with path.open("wb") as file:
        write_tables(trace, file)
    return path


def read(path):
    return READER.read(Source("x.parquet", path), Health())


@pytest.mark.corpus
@pytest.mark.parametrize(
    "names",
    [
        ["h200/gil_faulty_gil_held.json.gz"],
        ["h200/combined_held_kineto.json.gz", "h200/combined_held_pyspy.chrome.json.gz"],
        ["public/TraceLens__inference__vllm_decode_full__graph_execution.json.gz"],
        ["public/derived_trunc60_midevent.json.gz"],
        ["public/pftext_track_event_counters.pftrace"],
        ["public/pyspy043_raw.txt"],
    ],
)
def test_a_trace_comes_back_equal_and_is_judged_alike(names, tmp_path):
    loaded = plugins.load()
    before = opening.open_trace(*corpus(*names), plugins=loaded)
    after = opening.open_trace(str(saved(before, tmp_path / "x.parquet")), plugins=loaded)
    assert (after.origin_unix_ns, after.clock_halfwidth_ns) == (before.origin_unix_ns, before.clock_halfwidth_ns)
    assert after.facts == before.facts
    assert list(after.health) == list(before.health)
    for name, table in before.tables().items():
        assert after.tables()[name].equals(table), name
        assert after.tables()[name].schema == table.schema
    judged = [analyze(trace, loaded, Config()) for trace in (before, after)]
    assert judged[0].findings == judged[1].findings
    assert judged[0].rules == judged[1].rules


@pytest.fixture
def members(tmp_path):
    """The members of a saved trace as a mapping, and a way to write them again."""
    path = saved(synthetic(), tmp_path / "x.parquet")
    with zipfile.ZipFile(path) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def rewritten(members, path, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def parquet(frame):
    content = io.BytesIO()
    frame.write_parquet(content)
    return content.getvalue()


def table(members, name):
    return pl.read_parquet(io.BytesIO(members[f"{name}.parquet"]))


def changed(name, **columns):
    def change(members):
        frame = table(members, name).with_columns(**columns)
        members[f"{name}.parquet"] = parquet(frame)

    return change


def head(**values):
    def change(members):
        members[HEAD] = json.dumps(json.loads(members[HEAD]) | values).encode()

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed("slices", track_id=pl.lit(77, pl.UInt32)), "track_id of table slices leads to no row of tracks"),
        (changed("slices", parent_id=pl.lit(10**6, pl.UInt32)), "parent_id of table slices leads to no row of slices"),
        (changed("slices", slice_id=pl.lit(1, pl.UInt32)), "slices has a slice_id twice"),
        (changed("slices", dur_ns=pl.lit(-1)), "negative duration"),
        (changed("slices", kind=pl.lit("odd")), "table slices is damaged"),
        (changed("slices", start_ns=pl.lit(None, pl.Int64)), "'start_ns' holds nulls"),
        (changed("ticks", extra=pl.lit(1)), "unknown column 'extra'"),
        (changed("ticks", track_id=pl.lit(77, pl.UInt32)), "track_id of table ticks"),
        (head(format="other/1"), "written as 'other/1'"),
        (head(schema_version=10**6), "version 1000000"),
        (head(origin_unix_ns=2**70), "unreadable"),
        (head(facts={"roofs": {"x": "y"}}), "unreadable"),
        (lambda members: members.pop(HEAD), "unreadable"),
        (lambda members: members.update({"../x": b""}), "'../x', which is no table"),
        (lambda members: members.update({"slices.parquet": b"PAR1"}), "table slices is damaged"),
    ],
)
def test_a_tampered_file_is_one_clear_error(members, tmp_path, change, says):
    change(members)
    with pytest.raises(TracelensError) as caught:
        read(rewritten(members, tmp_path / "y.parquet"))
    assert says in caught.value.message
    assert caught.value.hint


def test_a_compressed_zip_is_refused(members, tmp_path):
    with pytest.raises(TracelensError, match="a compressed zip"):
        read(rewritten(members, tmp_path / "y.parquet", zipfile.ZIP_DEFLATED))


def test_more_rows_than_anybody_holds_are_refused_unread(members, tmp_path, monkeypatch):
    monkeypatch.setattr("tracelens.readers.parquet.MAX_ROWS", 5)
    with pytest.raises(TracelensError, match="more than 5"):
        read(rewritten(members, tmp_path / "y.parquet"))


@pytest.mark.parametrize("seed", range(30))
def test_damage_anywhere_is_an_error_or_harmless(tmp_path, seed):
    path = saved(synthetic(), tmp_path / "x.parquet")
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)
    if seed % 3 == 0:
        del content[chance.randrange(len(content)) :]
    for _ in range(3):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    try:
        trace = read(path)
    except TracelensError as error:
        assert error.hint
        return
    assert trace.slices.height == synthetic().slices.height


def test_only_our_own_zip_is_recognised(tmp_path):
    assert READER.sniff(saved(synthetic(), tmp_path / "x").read_bytes()[:65536], "x") == 100
    other = rewritten({"a.txt": b"x"}, tmp_path / "other.zip")
    assert READER.sniff(other.read_bytes(), "x.parquet") == 0
