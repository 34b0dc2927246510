"""Scores of groups of sentences, and of the terms of a glossary."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translume.config import EvaluationSettings
from translume.errors import TranslumeError
from translume.evaluation import measure
from translume.evaluation.groups import LENGTHS, by_length, by_rarest_word, group_scores, range_of
from translume.evaluation.terminology import TermAccuracy


@given(st.integers(0, 10**6), st.lists(st.integers(0, 1000), min_size=1, unique=True).map(sorted))
def test_a_number_is_in_its_range(number: int, ends: list[int]) -> None:
    rank, name = range_of(number, ends)
    low, _, high = name.rstrip("+").partition("-")
    assert int(low) <= number <= (int(high or low) if rank < len(ends) else number)
    assert range_of(number + 1, ends)[0] in (rank, rank + 1)


def test_ranges_of_lengths_and_frequencies_by_hand() -> None:
    texts = [" ".join(["word"] * count) for count in (0, 10, 11, 50, 51)]
    assert [name for _, name in by_length(texts)] == ["0-10", "0-10", "11-20", "31-50", "51+"]
    assert by_length(["今天天气很好，我们去公园吧。"]) == [range_of(14, LENGTHS)]
    training = ["a b"] * 9 + ["a"]
    assert [name for _, name in by_rarest_word(["a", "a b", "a b c", ""], training)] == ["10-99", "1-9", "0", "0"]


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "z"]), st.sampled_from(["a b", "c"])), min_size=1, max_size=17))
def test_groups_partition_the_sentences_and_each_is_scored_alone(rows: list[tuple[str, str]]) -> None:
    settings = EvaluationSettings(metrics=("wer", "exact_match"))
    groups, texts = [(0, group) for group, _ in rows], [text for _, text in rows]
    references = ["a b" for _ in rows]
    found = group_scores(groups, texts, [references], settings, [])
    assert [name for name, _, _ in found] == sorted({name for name, _ in rows})
    for name, count, scores in found:
        here = [text for group, text in rows if group == name]
        assert count == len(here)
        assert tuple(scores) == measure(here, ["a b"] * count, settings).scores


GLOSSARY = "Rathaus\ttown hall\nRathaus\tcity hall\nHund\tdog\ngroßer Hund\tbig dog\n"


@pytest.mark.parametrize(
    ("source", "text", "counts"),
    [
        ("Das Rathaus.", "The city hall.", (1, 1, 1)),
        ("das rathaus", "The Town Hall", (0, 1, 1)),
        ("Das Rathaus.", "The town halls.", (0, 0, 1)),
        ("Ein großer Hund und ein Hund", "a big dog", (2, 2, 2)),
        ("Hund Hund", "dog", (1, 1, 1)),
        ("Hunde", "dogs", (0, 0, 0)),
    ],
)
def test_terms_are_counted_as_whole_words(tmp_path: Path, source: str, text: str, counts: tuple[int, ...]) -> None:
    (tmp_path / "terms.tsv").write_text(GLOSSARY)
    settings = EvaluationSettings(glossary=str(tmp_path / "terms.tsv"))
    assert settings.names == ("bleu", "chrf", "terminology")
    np.testing.assert_array_equal(TermAccuracy(settings).count([text], [[""]], [source]), [counts])


def test_the_share_of_terms_is_in_per_cent_with_both_counts(tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text(GLOSSARY)
    settings = EvaluationSettings(metrics=("terminology",), glossary=str(tmp_path / "terms.tsv"))
    texts, sources = ["The Dog", "dog", "a cat"], ["Hund", "Hund", "Katze"]
    (score,) = measure(texts, texts, settings, sources=sources)
    assert str(score) == "terminology|case:mixed = 50.00 (1 of 2 terms, 2 in any case)"
    (score,) = measure(texts, texts, settings.model_copy(update={"lowercase": True}), sources=sources)
    assert str(score) == "terminology|case:lc = 100.00 (1 of 2 terms, 2 in any case)"
    assert measure(["a"], ["a"], settings, sources=["b"])["terminology"].value == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "evaluation.metrics: 'terminology' needs a list of terms; expected --glossary FILE"),
        ("Hund dog\n", "{file}:1: found 1 field, expected 2 separated by a tab: a source term and a target term"),
        ("Hund\t \n", "{file}:1: found a target term without a word, expected a word or a phrase"),
    ],
)
def test_a_wrong_glossary_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "terms.tsv"
    file.write_text(text or "")
    settings = EvaluationSettings(metrics=("terminology",), glossary="" if text is None else str(file))
    with pytest.raises(TranslumeError) as error:
        measure(["a"], ["a"], settings, sources=["a"])
    assert str(error.value) == message.format(file=file)
