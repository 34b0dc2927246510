"""Ensembles of translators, coverage penalty and language-model fusion through the public API."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from translume.belief import Logits
from translume.config import DecodingSettings, TokenizerSettings
from translume.errors import SettingsError, TranslationError
from translume.text import train_tokenizer
from translume.translator import Translator

Make = Callable[..., Translator]
few = settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts = st.lists(st.text("abcdefghij", min_size=1, max_size=7), min_size=1, max_size=5)
averages = pytest.mark.parametrize("average", ["probability", "log_probability"])


@pytest.fixture(scope="module")
def pair(make: Make) -> tuple[Translator, Translator]:
    return make("decoding.beam=3", seed=3), make(seed=4)


@averages
@few
@given(lines=texts)
def test_forced_decoding_reproduces_the_scores_of_an_ensemble(
    pair: tuple[Translator, Translator], average: str, lines: list[str]
) -> None:
    one, other = pair
    ensemble = one.ensemble_with(other, average=average)
    found = list(ensemble.translate_all(lines, nbest=3, length_penalty=0.0))
    pairs = [(each.source, hypothesis) for each in found for hypothesis in each.hypotheses]
    for (_, hypothesis), score in zip(pairs, ensemble.score_all(pairs), strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)
    if average == "probability":
        for (source, hypothesis), score in zip(pairs, ensemble.score_all(pairs), strict=True):
            each = [translator.score(source, hypothesis).token_log_probs for translator in pair]
            mean = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in zip(*each, strict=True)]
            assert score.token_log_probs == pytest.approx(mean, abs=1e-4)


@averages
@few
@given(lines=texts)
def test_an_ensemble_of_a_model_with_itself_equals_the_model(
    pair: tuple[Translator, Translator], average: str, lines: list[str]
) -> None:
    one = pair[0]
    alone, twice = (
        one.translate_all(lines, nbest=3),
        one.ensemble_with(one, average=average).translate_all(lines, nbest=3),
    )
    for wanted, found in zip(alone, twice, strict=True):
        assert [h.ids for h in found.hypotheses] == [h.ids for h in wanted.hypotheses]
        for a, b in zip(found.hypotheses, wanted.hypotheses, strict=True):
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-4)


def test_members_have_equal_weights_however_they_are_nested(pair: tuple[Translator, Translator]) -> None:
    one, other = pair
    flat, nested = one.ensemble_with(other, one), one.ensemble_with(other).ensemble_with(one)
    assert len(flat.models) == len(nested.models) == 3
    assert flat.translate("abc") == nested.translate("abc")
    assert flat.score("abc", "cab") == nested.score("abc", "cab")
    assert flat.score("abc", "cab").log_prob != one.ensemble_with(other).score("abc", "cab").log_prob


def test_distributions_of_an_ensemble_are_the_mean_of_its_members(pair: tuple[Translator, Translator]) -> None:
    ensemble = pair[0].ensemble_with(pair[1])
    ((belief, ids),) = ensemble.beliefs([("abc", "ca")])
    each = [next(iter(translator.beliefs([("abc", "ca")])))[0].log_probs().exp() for translator in pair]
    torch.testing.assert_close(belief.log_probs().exp(), (each[0] + each[1]) / 2)
    assert ids.numel() == 3


def test_compiled_members_give_the_same_translations(pair: tuple[Translator, Translator]) -> None:
    ensemble = pair[0].ensemble_with(pair[1])
    for wanted, found in zip(
        ensemble.translate("abcd").hypotheses, ensemble.compile().translate("abcd").hypotheses, strict=True
    ):
        assert found.ids == wanted.ids
        assert found.log_prob == pytest.approx(wanted.log_prob, abs=1e-3)


def test_members_begin_their_texts_with_the_same_tags(make: Make) -> None:
    one = make()
    config = one.config.model_copy(update={"model": one.config.model.model_copy(update={"language_tags": "target"})})
    with pytest.raises(SettingsError) as caught:
        one.ensemble_with(Translator(replace(one.checkpoint, config=config)))
    assert str(caught.value) == "ensemble: model 2 has model.language_tags = 'target', expected 'none' as model 1"


def test_the_source_limit_is_the_smallest_of_the_members(make: Make) -> None:
    ensemble = make(max_positions=41).ensemble_with(make(max_positions=11))
    with pytest.raises(TranslationError, match="expected at most 10"):
        ensemble.translate("abcdefghijkl")
    assert ensemble.translate("abcdefghij").text


def test_members_with_other_target_vocabularies_are_refused_by_name(make: Make) -> None:
    with pytest.raises(SettingsError) as error:
        make().ensemble_with(make(), make(shared=False))
    found, wanted = (len(each.checkpoint.target_tokenizer) for each in (make(shared=False), make()))
    assert str(error.value) == (
        f"ensemble: model 3 has a target vocabulary of {found} tokens, expected model 1's of {wanted}"
    )


@pytest.mark.parametrize("side", ["source", "target"])
def test_members_with_another_tokenizer_are_refused_with_the_first_difference(make: Make, side: str) -> None:
    one = make()
    wanted = one.checkpoint.source_tokenizer
    chosen = TokenizerSettings(kind="character", size=61, unknown="token")
    other = train_tokenizer(chosen, ["abcdefghijklm Nopqrstuvwxyz.!?"])
    assert len(other) == len(wanted)
    place = next(i for i, (a, b) in enumerate(zip(other.pieces(), wanted.pieces(), strict=True)) if a != b)
    stranger = Translator(replace(one.checkpoint, **{f"{side}_tokenizer": other}))
    with pytest.raises(SettingsError) as error:
        one.ensemble_with(stranger)
    assert str(error.value) == (
        f"ensemble: model 2 has another {side} vocabulary: its token {place} is '{other.pieces()[place]}', "
        f"expected '{wanted.pieces()[place]}' as in model 1"
    )


def test_members_with_equal_tokens_but_other_normalisation_are_refused(make: Make) -> None:
    one = make()
    chosen = TokenizerSettings(kind="character", size=61, unknown="token", lowercase=True)
    other = train_tokenizer(chosen, ["abcdefghijklm nopqrstuvwxyz.!?"])
    assert other.pieces() == one.checkpoint.source_tokenizer.pieces()
    with pytest.raises(SettingsError) as error:
        one.ensemble_with(Translator(replace(one.checkpoint, source_tokenizer=other)))
    assert str(error.value) == (
        "ensemble: model 2 cuts source text otherwise with the same tokens, expected the tokenizer of model 1"
    )


def test_a_fitted_temperature_belongs_to_one_model(pair: tuple[Translator, Translator]) -> None:
    with pytest.raises(SettingsError) as error:
        pair[0].ensemble_with(pair[1]).translate("abc", settings=DecodingSettings(calibrated=True))
    assert str(error.value) == (
        "decoding.calibrated: a temperature is fitted to one model, expected calibrated = false for 2 of them"
    )


# ---- coverage


@few
@given(lines=texts)
def test_a_coverage_penalty_changes_the_score_but_not_the_log_probability(
    pair: tuple[Translator, Translator], lines: list[str]
) -> None:
    one = pair[0]
    chosen = DecodingSettings(beam=3, nbest=3, coverage_penalty=0.4, length_penalty=0.0)
    for each in one.translate_all(lines, settings=chosen):
        for hypothesis in each.hypotheses:
            assert one.score(each.source, hypothesis).log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
            assert hypothesis.score <= hypothesis.log_prob + 1e-6


@pytest.mark.parametrize("name", ["beam", "diverse"])
def test_a_coverage_penalty_does_not_depend_on_the_batch_or_the_engine(
    pair: tuple[Translator, Translator], name: str
) -> None:
    chosen = DecodingSettings(strategy=name, beam=4, nbest=4, coverage_penalty=0.4)
    lines = ["abc", "jihgfedcba", "a", "bcde"]
    for translator in (pair[0], pair[0].compile(), pair[0].ensemble_with(pair[1])):
        for line, found in zip(lines, translator.translate_all(lines, settings=chosen), strict=True):
            wanted = translator.translate(line, settings=chosen)
            assert [h.ids for h in found.hypotheses] == [h.ids for h in wanted.hypotheses]
            for a, b in zip(found.hypotheses, wanted.hypotheses, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-4)


# ---- a language model


class EmptyState:
    def select(self, rows: torch.Tensor) -> "EmptyState":
        return self


class OneTokenModel:
    """A language model that prefers one token."""

    def __init__(self, token: int, size: int) -> None:
        self.row = torch.nn.functional.one_hot(torch.tensor(token), size) * 9.0

    def start(self, count: int) -> EmptyState:
        return EmptyState()

    def step(self, prefix: torch.Tensor, state: EmptyState) -> tuple[Logits, EmptyState]:
        return Logits(self.row.expand(len(prefix), -1)), state


def test_a_language_model_changes_the_output_but_not_the_log_probability(pair: tuple[Translator, Translator]) -> None:
    tokenizer = pair[0].checkpoint.target_tokenizer
    (token,) = tokenizer.encode("q")
    for plain in (pair[0], pair[0].compile(), pair[0].ensemble_with(pair[1])):
        fused = plain.fuse_with(OneTokenModel(token, len(tokenizer)), 30.0)
        found = fused.translate("abc", stop="optimal").hypotheses[0]
        assert set(found.ids) == {token}
        assert fused.score("abc", found).log_prob == pytest.approx(found.log_prob, abs=1e-3)
        assert plain.score("abc", found).log_prob == pytest.approx(found.log_prob, abs=1e-3)
        assert fused.translate("abc", strategy="sampling").text
