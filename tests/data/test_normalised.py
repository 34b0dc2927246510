"""Texts that the model reads as the same one count as one: in duplicates, identical sides and held-out samples."""

import pytest

from translume.config.data import CleaningSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data.cleaning import is_blank
from translume.data.encoding import Encoder
from translume.data.findings import Finder
from translume.data.pairs import Pair
from translume.data.token_cache import prepare
from translume.errors import DataError
from translume.text import Labels, train_tokenizer

VARIANTS = {
    "blank at the end": ("a text", "a text "),
    "two spaces": ("a text", "a  text"),
    "no-break space": ("a text", "a\u00a0text"),
    "tab": ("a text", "\ta\ttext"),
    "decomposed": ("caf\u00e9", "cafe\u0301"),
    "Hangul": ("\ud55c", "\u1112\u1161\u11ab"),
}


def variants(pairs: int, change: tuple[str, str]) -> list[tuple[str, str]]:
    """Return pairs, and the same ones with another form of their sources."""
    forms = [[(f"{form} {number}", f"t {number}") for number in range(pairs)] for form in change]
    return forms[0] + forms[1]


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_no_form_of_a_held_out_source_is_trained_on(corpus_files, by_merges, tmp_path, change):
    data = corpus_files(variants(200, change), valid=False)
    train, valid = (
        prepare(data, by_merges, by_merges, tmp_path / "cache", split=split) for split in ("train", "valid")
    )
    held_out = {tuple(valid.source(number).tolist()) for number in range(len(valid))}
    assert len(valid) == 8
    assert len(held_out) == 4
    assert held_out.isdisjoint(tuple(train.source(number).tolist()) for number in range(len(train)))


@pytest.mark.parametrize("change", VARIANTS.values(), ids=VARIANTS)
def test_rules_and_findings_compare_what_the_model_reads(corpus_files, by_merges, tmp_path, change):
    first, second = change
    pairs = [(first, "x"), (second, "x"), (first, second), ("other", "text")]
    rules = CleaningSettings(duplicates=True, identical=True)
    found = prepare(corpus_files(pairs, cleaning=rules), by_merges, by_merges, tmp_path / "cache", split="train")
    assert found.account.dropped == {"identical sides": 1, "duplicate": 1}
    data = corpus_files(pairs)
    finder = Finder(data, Encoder("sequence", by_merges, by_merges, "drop", None).normalised)
    finder.look([Pair(a, b, "f", line) for line, (a, b) in enumerate(pairs, 1)])
    assert list(finder.findings().counts.values())[:4] == [1, 1, 4, 4]


def test_forms_that_the_model_reads_differently_are_not_compared(corpus_files, by_bytes, tmp_path):
    settings = TokenizerSettings(kind="byte", normalization="none", whitespace="keep")
    keeps = train_tokenizer(settings, ["a"])
    changes = [change for name, change in VARIANTS.items() if name != "blank at the end"]  # never told apart
    pairs = [*changes, *((second, first) for first, second in changes)]
    rules = CleaningSettings(duplicates=True, identical=True)
    found = prepare(corpus_files(pairs, cleaning=rules), keeps, keeps, tmp_path / "cache", split="train")
    assert found.account.dropped == {}


@pytest.mark.parametrize(
    "blank", ["", " \u3000", "\u200b", "\ufeff", "\0", "\u2060\u200e ", "\u00ad", "\u3164", "\x07"]
)
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_text_of_which_nothing_can_be_seen_is_empty(corpus_files, by_bytes, tmp_path, blank, side, split):
    pairs = [("a", "b"), (blank, "b") if side == 0 else ("a", blank), ("c", "d")]
    found = prepare(corpus_files(pairs), by_bytes, by_bytes, tmp_path / "cache", split=split)
    assert found.account.dropped == {"empty": 1}


@pytest.mark.parametrize("text", [".", "0", "\u0301a", "\u200ba", "\U0001f600", "\u00a0-", "\ue000"])
def test_a_text_with_something_to_see_is_not_blank(text):
    assert not is_blank(text)


@pytest.mark.parametrize("name", ["p\u00f3s", "po\u0301s", " p\u00f3s ", "p\u00f3s\u00a0"])
def test_a_label_has_one_form(name):
    labels = Labels.collect([name, "neg", "p\u00f3s", "po\u0301s"])
    assert labels.names == ("neg", "p\u00f3s")
    assert labels.encode(name, "f:1") == [1]
    assert Labels.collect(["very  good", "very good", "bad"]).names == ("bad", "very good")
    assert Labels(("neg", "po\u0301s")).encode(name, "f:1") == [1]  # of a model that was trained before


def test_an_unknown_label_names_the_file_of_the_labels(corpus_files, write, by_bytes, tmp_path):
    data = corpus_files([("a", "new"), ("b", "good")]).model_copy(update={"task": "classification"})
    data = data.model_copy(update={"valid_target": (write("valid.labels", ["good", "bad"]),)})
    with pytest.raises(DataError) as caught:
        prepare(data, by_bytes, Labels(("good", "new")), tmp_path / "cache", split="valid")
    assert str(caught.value) == f"{tmp_path}/valid.labels:2: label 'bad' is not in the training data; known: good, new"
