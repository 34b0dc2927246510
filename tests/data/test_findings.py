"""`data check` reports suspicious training data that no rule drops."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from translume.cli import main
from translume.config import DataSettings
from translume.data.findings import Finder
from translume.data.pairs import Pair

TRAIN = [
    ("source", "de"),
    ("one two", "eins zwei"),
    ("three", "drei"),
    ("one two", "eins zwei"),
    ("Berlin", "Berlin "),
    ("three", "drei!"),
    ("one two", "eins zwei"),
    ("four", "vier"),
]
VALID = [("one two", "eins zwei"), ("three", "DREI"), ("five", "fünf"), ("one two", "eins zwei")]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A settings file for TRAIN and VALID."""
    for name, pairs in (("train", TRAIN), ("valid", VALID)):
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    names = {
        f"{split}_{side}": f"{split}.{end}"
        for split in ("train", "valid")
        for side, end in (("source", "en"), ("target", "de"))
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in names.items()]
    toml = [
        "[data]",
        'source_language = "en"',
        'target_language = "de"',
        *lines,
        "[tokenizer]",
        'kind = "character"',
        "size = 300",
    ]
    (tmp_path / "a.toml").write_text("\n".join(toml) + "\n", encoding="utf-8")
    return tmp_path / "a.toml"


def check(*words: str | Path) -> str:
    result = CliRunner().invoke(
        main, ["data", "check", *map(str, words)], prog_name="translume", catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


def test_findings_are_reported_with_an_example_each(settings: Path) -> None:
    train = settings.parent / "train.en"
    valid = f"valid: {len(VALID)} pairs read, {len(VALID)} used, 0 dropped"
    assert check(settings).splitlines() == [
        "train: 8 pairs read, 8 used, 0 dropped",
        "  duplicate pairs: 2; kept, unless data.cleaning.duplicates = true",
        f"    {train}:4: 'one two' | 'eins zwei'",
        "  identical sides: 1; kept, unless data.cleaning.identical = true",
        f"    {train}:5: 'Berlin' | 'Berlin '",
        "  pairs also in the validation data: 2",
        f"    {train}:2: 'one two' | 'eins zwei'",
        "  sources also in the validation data: 3",
        f"    {train}:2: 'one two' | 'eins zwei'",
        "  first line is likely a header",
        f"    {train}:1: 'source' | 'de'",
        valid,
    ]


def test_what_a_rule_drops_is_reported_once(settings: Path) -> None:
    rules = ("--set", "data.cleaning.duplicates=true", "--set", "data.cleaning.identical=true")
    lines = check(settings, *rules).splitlines()
    assert [line for line in lines if "duplicate" in line or "identical" in line] == [
        "  identical sides: 1",
        "  duplicate: 2",
    ]


def test_findings_in_json_belong_to_the_training_data(settings: Path) -> None:
    train, valid = map(json.loads, check(settings, "--json").splitlines())
    assert train["findings"]["counts"] == {
        "duplicate pairs": 2,
        "identical sides": 1,
        "pairs also in the validation data": 2,
        "sources also in the validation data": 3,
        "control or invisible characters": 0,
        "texts of more than 10,000 characters": 0,
    }
    assert train["findings"]["headers"][0]["line"] == 1
    assert "findings" not in valid


def test_clean_data_have_no_findings(tmp_path: Path) -> None:
    finder = Finder(DataSettings())
    finder.look([Pair(source="a", target="b", file="f", line=1), Pair(source="c", target="", file="f", line=2)])
    assert finder.findings().lines() == []


def test_documents_have_no_sources_to_compare(tmp_path: Path) -> None:
    (tmp_path / "valid.txt").write_text("a\nb\n", encoding="utf-8")
    finder = Finder(DataSettings(task="language_model", documents="line", valid=(str(tmp_path / "valid.txt"),)))
    finder.look([Pair(source="", target=text, file="f", line=line) for line, text in enumerate("cdb", start=2)])
    counts = finder.findings().counts
    assert counts["pairs also in the validation data"] == 1
    assert counts["sources also in the validation data"] == 0


words = st.sampled_from(["a", "b", "c", ""])
pairs = st.lists(st.tuples(words, words), max_size=30)


@given(pairs, pairs, st.integers(1, 7))
def test_counts_equal_those_of_sets(
    tmp_path_factory: pytest.TempPathFactory, train: list[tuple[str, str]], valid: list[tuple[str, str]], size: int
) -> None:
    given = [Pair(source=f"{s}", target=f"{t}", file="f", line=line) for line, (s, t) in enumerate(train, start=2)]
    files = DataSettings()
    if valid:
        file = tmp_path_factory.mktemp("valid") / "valid.tsv"
        file.write_text("".join(f"{s}\t{t}\n" for s, t in valid), encoding="utf-8")
        files = DataSettings(valid=(str(file),))
    finder = Finder(files)
    for start in range(0, len(given), size):
        finder.look(given[start : start + size])
    assert list(finder.findings().counts.values()) == [
        len(train) - len(set(train)),
        sum(s == t != "" for s, t in train),
        sum(pair in set(train) for pair in valid),
        sum(source in {s for s, _ in train} for source, _ in valid),
        0,
        0,
    ]


HIDDEN = {
    "NUL": "a\0b",
    "line separator": "a\u2028b",
    "carriage return within": "a\rb",
    "zero-width space": "a\u200bb",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00adb",
    "direction": "a\u202eb",
    "joiner in Latin": "a\u200db",
    "escape": "\x1b[31ma",
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("side", [0, 1])
def test_characters_that_cannot_be_seen_are_found_on_both_sides(text: str, side: int) -> None:
    finder = Finder(DataSettings())
    for line, shown in enumerate(("می\u200cخواهم", "👩\u200d🚀", "क्\u200dष", "a\tb", text), start=1):
        finder.look([Pair("x", shown, "f", line) if side else Pair(shown, "x", "f", line)])
    found = finder.findings()
    assert found.counts["control or invisible characters"] == 1
    assert found.examples["control or invisible characters"].line == 5


def test_very_long_texts_are_found_and_shown_in_part() -> None:
    finder = Finder(DataSettings())
    finder.look([Pair("a" * 10_000, "b", "f", 1), Pair("c", "d" * 20_000, "f", 2)])
    assert finder.findings().lines() == [
        "  texts of more than 10,000 characters: 1",
        f"    f:2: 'c' | '{'d' * 200}'",
    ]


@pytest.mark.parametrize("files", ["train.en train.de", "train.en train.de valid.en valid.de", "train.tsv"])
def test_files_are_checked_without_settings(settings: Path, files: str) -> None:
    folder = settings.parent
    (folder / "train.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in TRAIN))
    words = ("--set", "tokenizer.kind=character", "--set", "tokenizer.size=300")
    lines = check(*(folder / name for name in files.split()), *words).splitlines()
    assert (
        lines[0]
        == f"train: 8 pairs read, {'8 used' if 'valid' in files else '7 used, 1 held out for validation'}, 0 dropped"
    )
    assert "  duplicate pairs: 2; kept, unless data.cleaning.duplicates = true" in lines
    assert ("  pairs also in the validation data: 2" in lines) == ("valid" in files)
