"""Tables are built by declaration: wrong data fails by name."""

import polars as pl
import pytest

from tracelens import schema


def test_build_fills_absent_optional_columns_with_null():
    frame = schema.COUNTERS.build({"track_id": [0], "at_ns": [5], "value": [1.5]})
    assert frame.row(0) == (0, 5, 1.5)
    tracks = schema.TRACKS.build({"track_id": [0], "kind": ["thread"], "process_id": [7]})
    assert tracks["thread_id"].to_list() == [None]
    assert tracks.schema == schema.TRACKS.dtypes


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"track_id": [0], "at_ns": [1]}, "'value' is missing"),
        ({"track_id": [0], "at_ns": [1], "value": [None]}, "'value' holds nulls"),
        ({"track_id": [0], "at_ns": ["x"], "value": [1.0]}, "'at_ns' does not fit"),
        ({"track_id": [-1], "at_ns": [1], "value": [1.0]}, "'track_id' does not fit"),
        ({"track_id": [0], "at_ns": [1], "value": [1.0], "colour": [1]}, "unknown column 'colour'"),
    ],
)
def test_build_names_the_column_that_is_wrong(columns, words):
    with pytest.raises(ValueError, match=f"table counters: .*{words}"):
        schema.COUNTERS.build(columns)


def test_enum_values_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="'kind' does not fit"):
        schema.TRACKS.build({"track_id": [0], "kind": ["planet"], "process_id": [1]})


def test_every_table_renders_its_reference_with_every_column():
    for name, table in schema.TABLES.items():
        page = schema.reference(name)
        for column in table.columns:
            assert f"  {column.name} " in page
            assert column.says in page
    assert isinstance(schema.SLICES.empty(), pl.DataFrame)
