"""Length limits follow from the training pairs, with room; the folder stores what they need."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.config.data import DataSettings
from translume.data.lengths import Lengths, learn_lengths
from translume.data.token_cache import prepare
from translume.text import Tokenizer

Files = Callable[..., DataSettings]


@pytest.fixture
def learned(corpus_files: Files, by_bytes: Tokenizer, tmp_path: Path) -> Callable[..., Lengths]:
    """Return a function that learns lengths from pairs, one token a letter."""

    def learn(pairs: Sequence[tuple[str, str]], language: str = "en") -> Lengths:
        data = corpus_files(pairs)
        return learn_lengths(prepare(data, by_bytes, by_bytes, tmp_path / "cache", split="train"), language)

    return learn


def test_the_limit_is_twice_the_longest_target_of_such_sources_and_ten(learned: Callable[..., Lengths]) -> None:
    pairs = [("a" * 2, "b" * 3)] * 100 + [("a" * 5, "b" * 30)] * 100 + [("a" * 8, "b" * 6)] * 100
    found = learned(pairs)
    assert found.longest_target == (3, 3, 30, 30)
    assert [found.target_limit(length) for length in (1, 2, 3, 4, 7, 8)] == [16, 16, 16, 70, 70, 70]
    # beyond the longest source in proportion: 30 · 12 / 8 = 45
    assert found.target_limit(12) == 100


def test_a_group_of_few_pairs_counts_those_of_longer_sources(learned: Callable[..., Lengths]) -> None:
    assert learned([("a", "b")] * 99 + [("aaa", "b" * 9)]).longest_target == (9, 9)
    assert learned([("a", "b")] * 100 + [("aaa", "b" * 9)]).longest_target == (1, 9)


def test_one_misaligned_pair_of_thousands_changes_nothing(learned: Callable[..., Lengths]) -> None:
    found = learned([("aaaa", "b" * 4)] * 2000 + [("aaaa", "b" * 200)])
    assert found.target_limit(4) == 18


@given(lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 80)), min_size=1, max_size=30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_every_training_target_fits_with_room(learned: Callable[..., Lengths], lengths: list[tuple[int, int]]) -> None:
    found = learned([("a" * source, "b" * target) for source, target in lengths])
    for source, target in lengths:
        assert found.target_limit(source) >= 2 * target + 10


def test_targets_far_below_the_training_ratios_are_recognised(learned: Callable[..., Lengths]) -> None:
    found = learned([("a" * 8, "b" * 4)] * 999 + [("a" * 8, "b" * 2)])
    assert found.least_ratio == (0.5, 0.5, 0.5, 0.5)
    assert found.least_target(20) == 10.0
    assert learned([("a" * 8, "b" * 4)] * 999).least_ratio == ()


@pytest.mark.parametrize(
    ("sources", "share", "single"),
    [
        (["One. Two.", "One", "One two", "One!"], 0.25, False),
        (["One. Two."] + ["One."] * 20, 1 / 21, True),
        (["no sentence", "z. B. this"], 0.0, True),
    ],
)
def test_sources_of_several_sentences_are_counted(
    learned: Callable[..., Lengths], sources: list[str], share: float, single: bool
) -> None:
    found = learned([(source, "b") for source in sources], "de")
    assert found.several_sentences == share
    assert found.single_sentences == single


def test_lengths_are_the_same_after_writing_and_reading() -> None:
    found = Lengths(pairs=3, several_sentences=0.5, longest_source=9, longest_target=(1, 4), least_ratio=(0.25, 0.5))
    assert Lengths.from_json(found.to_json()) == found


def test_merged_lengths_allow_what_either_allows() -> None:
    one = Lengths(pairs=2, several_sentences=0.1, longest_source=3, longest_target=(1, 40), least_ratio=(0.5, 0.4))
    other = Lengths(
        pairs=3, several_sentences=0.0, longest_source=9, longest_target=(2, 3, 5, 8), least_ratio=(0.6, 0.3, 0.3, 0.3)
    )
    assert one.merged(other) == Lengths(
        pairs=5,
        several_sentences=0.1,
        longest_source=9,
        longest_target=(2, 40, 40, 40),
        least_ratio=(0.5, 0.3, 0.3, 0.3),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"pairs": 1}',
        Lengths(pairs=1, several_sentences=0.0, longest_source=1, longest_target=()).to_json(),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="for Lengths"):
        Lengths.from_json(text)
