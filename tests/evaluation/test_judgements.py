"""Sheets for judges: blind rows, checks of what comes back, and the scores."""

from pathlib import Path

import numpy as np
import pytest

from translume.errors import TranslumeError
from translume.evaluation.judgements import CATEGORIES, COLUMNS, key_of, read_judgements, write_sheet
from translume.evaluation.significance import compare_counts

SOURCES = [f"source\t{number}" for number in range(7)]
SYSTEMS = {"one": [f"a {number}" for number in range(7)], "other": [f"b {number}" for number in range(7)]}


def rows_of(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def judged(sheet: Path, cells: dict[str, list[str]]) -> Path:
    """Write a judge's copy, with the cells of each row by its translation."""
    head, *rows = rows_of(sheet)
    width = len(head) - 3
    filled = [[*row[:3], *cells[row[2]], *[""] * width][: len(head)] for row in rows]
    copy = sheet.with_name("judged.tsv")
    copy.write_text("".join("\t".join(row) + "\n" for row in [head, *filled]))
    return copy


@pytest.mark.parametrize("kind", ["mqm", "esa"])
def test_a_sheet_is_blind_and_its_key_says_whose_each_row_is(tmp_path: Path, kind: str) -> None:
    sheet = tmp_path / "sheet.tsv"
    assert write_sheet(kind, sheet, SOURCES, SYSTEMS, sentences=5) == 10
    head, *rows = rows_of(sheet)
    assert head == ["id", "source", "translation", *COLUMNS[kind]]
    assert not any(name in sheet.read_text() for name in SYSTEMS)
    key = {id_: (system, int(line)) for id_, system, line in rows_of(key_of(sheet))[1:]}
    assert [row[0] for row in rows] == list(key) == sorted(key)
    for id_, source, translation, *empty in rows:
        system, line = key[id_]
        assert (source, translation) == (" ".join(SOURCES[line - 1].split()), SYSTEMS[system][line - 1])
        assert not any(empty)
    assert len({line for _, line in key.values()}) == 5
    assert [system for system, _ in key.values()] not in (["one"] * 5 + ["other"] * 5, ["one", "other"] * 5)


def test_a_seed_determines_a_sheet_and_an_existing_one_is_not_overwritten(tmp_path: Path) -> None:
    for name, seed in (("a.tsv", 1), ("b.tsv", 1), ("c.tsv", 2)):
        write_sheet("esa", tmp_path / name, SOURCES, SYSTEMS, seed=seed)
    assert (tmp_path / "a.tsv").read_text() == (tmp_path / "b.tsv").read_text() != (tmp_path / "c.tsv").read_text()
    with pytest.raises(TranslumeError) as error:
        write_sheet("esa", tmp_path / "a.tsv", SOURCES, SYSTEMS)
    assert str(error.value) == f"{tmp_path}/a.tsv: exists, and judgements may need it; expected a new name"
    with pytest.raises(TranslumeError) as error:
        write_sheet("esa", tmp_path / "a.csv", SOURCES, SYSTEMS)
    assert str(error.value) == f"--sheet: found '{tmp_path}/a.csv', expected a name that ends in .tsv"


def test_esa_is_the_mean_of_sentences_and_judges(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.tsv"
    write_sheet("esa", sheet, SOURCES, SYSTEMS)
    points = {f"{side} {number}": [str(base + number)] for side, base in (("a", 10), ("b", 50)) for number in range(7)}
    one = judged(sheet, points).rename(tmp_path / "one.tsv")
    other = judged(sheet, {text: ["30,5"] for text in points})
    found = read_judgements(key_of(sheet), [one, other])
    scores = {name: found.score(counts.sum(0)) for name, counts in found.systems.items()}
    assert {name: score.value for name, score in scores.items()} == {"one": 21.75, "other": 41.75}
    assert str(scores["one"]) == "ESA|judges:2 = 21.75"
    difference = compare_counts(found, [found.systems["one"], found.systems["other"]], test="randomisation")
    assert (difference.difference.low, difference.difference.high) == (pytest.approx(20.0), pytest.approx(20.0))
    assert difference.p_value == pytest.approx(2 / 2**7, abs=0.005)  # two of 128 exchanges differ as much


def test_mqm_adds_the_weights_of_freitag_and_others(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.tsv"
    write_sheet("mqm", sheet, SOURCES[:5], {"one": SYSTEMS["one"][:5]})
    cells = [
        ["Fluency/Punctuation", "Minor"],
        ["style/awkward", "minor", "a"],
        ["accuracy/omission", "major"],
        ["non-translation", "major"],
        ["", "no-error"],
    ]
    copy = judged(sheet, {f"a {number}": each for number, each in enumerate(cells)})
    again = next(line for line in copy.read_text().splitlines() if "\ta 4\t" in line)
    copy.write_text(copy.read_text() + again.replace("\t\tno-error", "\tother\tneutral") + "\n")
    found = read_judgements(key_of(sheet), [copy])
    assert sorted(found.systems["one"][:, 0]) == [0.0, 0.1, 1.0, 5.0, 25.0]
    assert str(found.score(found.systems["one"].sum(0))) == "MQM|judges:1|weights:25/5/1/0.1 = 6.22"


@pytest.mark.parametrize(
    ("kind", "row", "message"),
    [
        ("mqm", "r0002\ts\tt\tstyle/awkward\tmajr\t", "{sheet}:2: severity: found 'majr'; did you mean 'major'?"),
        ("mqm", "r0002\ts\tt\t\t\t", "{sheet}:2: severity: found ''; known: no-error, neutral, minor, major"),
        ("mqm", "r0002\ts\tt\tstyle/akward\tmajor\t",
         "{sheet}:2: category: found 'style/akward'; did you mean 'style/awkward'?"),
        ("mqm", "r0002\ts\tt\t\tmajor\t", "{sheet}:2: category: found ''; known: " + ", ".join(CATEGORIES)),
        ("esa", "r0002\ts\tt\t100.5\t", "{sheet}:2: score: found '100.5', expected a number from 0 to 100"),
        ("esa", "r0002\ts\tt\tnan\t", "{sheet}:2: score: found 'nan', expected a number from 0 to 100"),
        ("esa", "r0002\ts\tt\t\t", "{sheet}:2: score: found '', expected a number from 0 to 100"),
        ("esa", "r9\ts\tt\t9\t", "{sheet}:2: id: found 'r9', expected one of {key}; nearest: r0002, r0001"),
        ("esa", "r0002\ts\tt\t9\t\nr0002\ts\tt\t9\t",
         "{sheet}:3: id: found 'r0002' twice, expected one score for each row"),
        ("esa", "r0002\ts\tt\t9\t", "{sheet}: 1 of 2 rows are missing, the first is r0001"),
        ("esa", "r0002", "{sheet}:2: 1 tab-separated fields, expected at least 4"),
    ],
)  # fmt: skip
def test_each_row_is_checked(tmp_path: Path, kind: str, row: str, message: str) -> None:
    sheet = tmp_path / "sheet.tsv"
    write_sheet(kind, sheet, SOURCES[:1], {"one": ["a"], "other": ["b"]})
    sheet.write_text(sheet.read_text().splitlines()[0] + f"\n{row}\n")
    with pytest.raises(TranslumeError) as error:
        read_judgements(key_of(sheet), [sheet])
    assert str(error.value) == message.format(sheet=sheet, key=key_of(sheet))


def test_keys_and_sheets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for kind in COLUMNS:
        write_sheet(kind, tmp_path / f"{kind}.tsv", SOURCES[:1], {"one": ["a"], "other": ["b"]})
    sheets, key = [tmp_path / f"{kind}.tsv" for kind in COLUMNS], tmp_path / "esa.key.tsv"
    with pytest.raises(TranslumeError) as error:
        read_judgements(key, sheets)
    assert str(error.value) == "--judgements: found sheets of esa and mqm, expected one kind"
    key.write_text("")
    with pytest.raises(TranslumeError) as error:
        read_judgements(key, sheets[:1])
    assert str(error.value) == f"{key}: found no rows, expected those of a sheet: id, system and line"
    key.write_text("id\tsystem\tline\nr0001\tone\t1\nr0002\tother\t2\n")
    sheets[1].write_text("id\tscore\nr0001\t1\nr0002\t1\n")
    with pytest.raises(TranslumeError) as error:
        read_judgements(key, sheets[1:])
    assert str(error.value) == f"{key}: found systems with different lines, expected the same lines of all"


def test_a_judge_who_finds_no_error_gives_zero(tmp_path: Path) -> None:
    write_sheet("mqm", tmp_path / "s.tsv", SOURCES, SYSTEMS)
    copy = judged(tmp_path / "s.tsv", {text: ["", "No-Error"] for texts in SYSTEMS.values() for text in texts})
    for counts in read_judgements(tmp_path / "s.key.tsv", [copy]).systems.values():
        np.testing.assert_array_equal(counts, [[0.0, 1.0]] * 7)
