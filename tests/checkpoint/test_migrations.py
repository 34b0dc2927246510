"""Migrations of older settings."""

import pytest

from translume.checkpoint.migrations import Tables, migrate
from translume.errors import ModelFolderError


def rename(tables: Tables) -> Tables:
    return {**{name: value for name, value in tables.items() if name != "old"}, "new": tables["old"]}


def double(tables: Tables) -> Tables:
    return {**tables, "new": 2 * tables["new"]}


def test_migrations_run_in_order() -> None:
    tables = {"format": 1, "old": 3}
    assert migrate(tables, "m", {1: rename, 2: double}, newest=3) == {"format": 3, "new": 6}
    assert tables == {"format": 1, "old": 3}
    assert migrate({"format": 2, "new": 3}, "m", {1: rename, 2: double}, newest=3) == {"format": 3, "new": 6}


def test_the_newest_format_stays_as_it_is() -> None:
    assert migrate({"format": 2}, "m") == {"format": 2}
    assert migrate({}, "m") == {}


def test_settings_of_format_1_mean_the_same_in_format_2() -> None:
    assert migrate({"format": 1, "model": {"width": 3}}, "m") == {"format": 2, "model": {"width": 3}}


def test_settings_that_no_longer_exist_are_dropped() -> None:
    tables = {"format": 1, "decoding": {"beam": 4, "speculation": "none", "draft_length": 4}}
    assert migrate(tables, "m") == {"format": 2, "decoding": {"beam": 4}}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (3, "m: format 3 is newer than format 2, the newest this Translume reads; upgrade Translume"),
        (0, "m: format: found 0, expected a number from 1 to 2"),
        ("1", "m: format: found '1', expected a number from 1 to 2"),
        (True, "m: format: found True, expected a number from 1 to 2"),
    ],
)
def test_an_unknown_format_is_refused(found: object, message: str) -> None:
    with pytest.raises(ModelFolderError) as caught:
        migrate({"format": found}, "m")
    assert str(caught.value) == message
