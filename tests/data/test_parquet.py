"""Parquet files are read as the same rows in JSONL are."""

import json
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from translume.config.data import DataSettings
from translume.data import tables
from translume.data.tables import count_rows, read_columns
from translume.data.token_cache import prepare
from translume.errors import DataError, SettingsError

ROWS = [{"id": n, "translation": {"en": f"a{n}", "de": f"b{n}"}, "source": f"c{n}", "target": "d"} for n in range(11)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(tables, "_PARQUET_ROWS", 3)


@pytest.fixture
def both(tmp_path):
    """The paths of ROWS as JSONL and as Parquet."""
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet", row_group_size=5)
    return [str(tmp_path / name) for name in ("rows.jsonl", "rows.parquet")]


@pytest.mark.parametrize("keys", [("source", "target"), ("translation.de", "translation.en"), ("target",)])
def test_columns_and_fields_of_structs_are_those_of_jsonl(both, keys):
    first, second = (list(read_columns(file, keys)) for file in both)
    assert first == second
    assert [line for line, _ in first] == list(range(1, 12))
    assert count_rows(both[1]) == count_rows(both[0]) == 11


def test_a_corpus_in_parquet_has_the_tokens_of_one_in_jsonl(both, by_bytes, tmp_path):
    first, second = (
        prepare(DataSettings(train=(file,)), by_bytes, by_bytes, tmp_path / str(number), split="train")
        for number, file in enumerate(both)
    )
    assert np.array_equal(first.tokens, second.tokens)
    assert second.account.read == 11
    assert second.place(0) == f"{both[1]}:1"


def test_what_is_not_there_is_named(both):
    with pytest.raises(DataError) as caught:
        list(read_columns(both[1], ("sauce",)))
    assert str(caught.value) == f"{both[1]}: no column 'sauce'; did you mean 'source'?"
    with pytest.raises(DataError) as caught:
        list(read_columns(both[1], ("translation.fr",)))
    assert str(caught.value) == f"{both[1]}:1: no 'translation.fr'; it has: translation"
    with pytest.raises(DataError) as caught:
        list(read_columns(both[1], ("translation",)))
    assert str(caught.value) == f"{both[1]}:1: 'translation' is not text"
    assert [texts for _, texts in read_columns(both[1], ("id",))] == [
        texts for _, texts in read_columns(both[0], ("id",))
    ]


def test_null_is_an_empty_text_or_a_fault(tmp_path):
    file = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"x": ["a", None]}), file)
    assert list(read_columns(file, ("x",))) == [(1, ["a"]), (2, [""])]
    faults: list[str] = []
    assert list(read_columns(file, ("x",), faults=faults)) == [(1, ["a"]), (2, [""])]
    assert faults == ["'x' is null"]


def test_a_file_that_is_no_parquet_is_one_line(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_text("no table of this kind\n")
    with pytest.raises(DataError) as caught:
        count_rows(str(file))
    assert str(caught.value).startswith(f"{file}: not Parquet: Parquet magic bytes not found")
    with pytest.raises(DataError) as caught:
        count_rows(str(tmp_path / "b.parquet"))
    assert str(caught.value) == f"{tmp_path}/b.parquet: no such file"


def test_without_pyarrow_the_extra_is_named(both, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError) as caught:
        list(read_columns(both[1], ("source",)))
    assert str(caught.value) == f"{both[1]}: needs pyarrow, which is not installed; pip install 'translume[parquet]'"
