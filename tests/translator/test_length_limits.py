"""The length limit of a target: by the training data, unless [decoding] has one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from translume.config import Config
from translume.data.lengths import Lengths
from translume.engine import EngineError
from translume.translator import Translator
from translume.translator.search import target_limit

Make = Callable[..., Translator]

LENGTHS = Lengths(pairs=1, several_sentences=0.0, longest_source=7, longest_target=(1, 2, 4))
"""A limit of 18 tokens for a source of 4 to 7."""
ENDLESS = ("decoding.min_length=999", "decoding.strategy=greedy")
"""Settings with which no target ends before its limit."""


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ((), 18),
        (("decoding.max_length_ratio=3",), 25),
        (("decoding.max_length_extra=1",), 11),
        (("decoding.max_length_ratio=3", "decoding.max_length_extra=2"), 17),
        (("decoding.max_length=30",), 30),
        (("decoding.max_length=3",), 3),
        (("decoding.max_length=30", "decoding.max_length_ratio=3"), 25),
        (("decoding.max_length=300",), 41),
    ],
)
def test_settings_take_precedence_over_the_training_data(make: Make, options: tuple[str, ...], limit: int) -> None:
    translator = make(*options)
    checkpoint = replace(translator.checkpoint, lengths=LENGTHS)
    assert target_limit(checkpoint, 5, 0, translator.config.decoding) == limit


def test_a_model_without_lengths_allows_twice_the_source_and_ten(make: Make) -> None:
    translator = make()
    assert target_limit(translator.checkpoint, 5, 2, translator.config.decoding) == 22


@pytest.mark.parametrize("fast", [False, True])
def test_each_engine_ends_at_the_limit_and_says_so(make: Make, fast: bool) -> None:
    translator = make(*ENDLESS)
    translator = Translator(replace(translator.checkpoint, lengths=LENGTHS))
    if fast:
        try:
            translator = translator.compile()
        except EngineError as error:
            pytest.skip(str(error))
    found = translator.translate("abcde")
    assert len(found.hypotheses[0].ids) == 18
    assert found.reached_limit
    assert found.quality_warnings[0] == "truncated: the target reached its limit of tokens before its end"


def test_an_ensemble_allows_what_any_member_allows(make: Make) -> None:
    one, other = (Translator(replace(make(*ENDLESS, seed=seed).checkpoint, lengths=LENGTHS)) for seed in (3, 4))
    longer = replace(LENGTHS, longest_target=(1, 2, 9))
    other = Translator(replace(other.checkpoint, lengths=longer))
    assert len(one.ensemble_with(other).translate("abcde").hypotheses[0].ids) == 28
    assert one.ensemble_with(Translator(replace(other.checkpoint, lengths=None))).checkpoint.lengths is None


def test_a_limit_cannot_be_negative() -> None:
    from translume.errors import SettingsError

    with pytest.raises(SettingsError):
        Config().change("decoding.max_length_ratio=-1")
