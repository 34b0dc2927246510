"""Properties of all strategies. A new strategy is covered as soon as its name is in STRATEGIES."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.decoding.searching import BOS, EOS, KEYS, Prefer, build_strategy, limits3, run, seeds

from translume.belief import Bias
from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.decoding import (
    BeamSearch,
    DiverseBeam,
    ForbidTokens,
    ForcedPrefix,
    MinimumLength,
    SearchError,
    StochasticBeam,
    reshaped,
    resolve_strategy,
    strategy_from,
)
from translume.errors import SettingsError

every = pytest.mark.parametrize("name", sorted(STRATEGIES))
shapes = st.sampled_from([{}, {"temperature": 0.5}, {"temperature": 2.0}, {"unsmooth": 0.1}])
drawing = st.sampled_from(
    [{}, {"temperature": 0.7}, {"top_k": 2}, {"top_k": 3, "min_p": 0.2}, {"top_p": 0.8}, {"epsilon": 0.1, "eta": 0.2}]
)


def no_immediate_repeat(prefix, context):
    """Forbid each token after itself, and add a bias to token 3."""
    return Bias.join([Bias.forbid(torch.arange(prefix.size(0)), prefix[:, -1]), Prefer(3, 0.5)(prefix, context)])


@every
@given(seeds, limits3, shapes, drawing)
def test_rules_are_obeyed_and_log_probabilities_are_the_models_own(toy, name, seed, limits, shape, options):
    step = toy(seed, sharpness=2.0)
    rules = [ForbidTokens((BOS,)), MinimumLength(2), ForcedPrefix([[], [2], [3]]), no_immediate_repeat]
    strategy = build_strategy(name, seed=seed, **options)
    for sentence, hypotheses in enumerate(run(reshaped(step, **shape), strategy, limits, rules, step.start())):
        assert 1 <= len(hypotheses) <= strategy.nbest
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            assert math.isfinite(h.score)
            assert h.log_prob == pytest.approx(step.log_prob(sentence, h.tokens), abs=1e-4)
            assert math.fsum(h.log_probs) == pytest.approx(h.log_prob, abs=1e-4)
            assert BOS not in h.tokens
            assert EOS not in h.tokens[:-1]
            assert (h.tokens[-1] == EOS) == (h.finished_by == "eos")
            assert h.finished_by == "eos" or len(h.tokens) == limits[sentence]
            assert h.finished_by == "length" or len(h.tokens) > 2
            assert h.tokens[: min(sentence, 1)] == ((), (2,), (3,))[sentence]
            assert not any(one == other for one, other in zip(h.tokens, h.tokens[1:], strict=False))


@every
@given(seeds, st.lists(st.integers(0, 2), min_size=1, max_size=7), limits3, drawing)
def test_results_do_not_depend_on_other_sentences_or_their_order(toy, name, seed, sentences, limits, options):
    step, rules = toy(seed), [ForbidTokens((BOS,))]

    def found(which):
        strategy = build_strategy(name, KEYS[which], seed=seed, **options)
        return run(step, strategy, [limits[each] for each in which], rules, step.start(which))

    for sentence, together in zip(sentences, found(sentences), strict=True):
        (alone,) = found([sentence])
        assert [(h.tokens, h.finished_by) for h in together] == [(h.tokens, h.finished_by) for h in alone]
        assert [h.log_prob for h in together] == pytest.approx([h.log_prob for h in alone], abs=1e-5)
        assert [h.score for h in together] == pytest.approx([h.score for h in alone], abs=1e-5)


@every
def test_a_hypothesis_without_possible_tokens_does_not_stop_the_others(toy, name):
    step = toy(3)
    step.logits[0][:] = torch.tensor([-9.0, -9.0, 1.0, 1.0, 1.0])
    found = run(step, build_strategy(name), [4, 4, 4], [ForbidTokens((BOS,)), only_after_two])
    assert all(h.tokens[0] != 3 for hypotheses in found for h in hypotheses)
    assert all(hypotheses for hypotheses in found)


def only_after_two(prefix, context):
    """Forbid every token after 3. Tokens 2 and 3 may only come first."""
    allowed = (prefix[:, -1] != 3)[:, None].repeat(1, context.size)
    allowed &= torch.tensor([False, False, True, True, False] if context.step == 0 else [True] * 3 + [False, True])
    return Bias.join([Bias.only(allowed), Prefer(2, 0.5)(prefix, context)])


@every
def test_an_error_in_one_line_is_raised_if_every_token_is_forbidden(toy, name):
    with pytest.raises(SearchError) as error:
        run(toy(3), build_strategy(name), [4, 4, 4], [ForbidTokens((2,)), ForcedPrefix([[3], [3, 2], []])])
    assert str(error.value) == (
        "sentence 2, token 2: every next token is impossible or forbidden, "
        "expected one that is neither (rules: ForbidTokens, ForcedPrefix)"
    )


@every
def test_a_nan_raises_with_its_sentence_and_token(toy, name):
    step, strategy = toy(3), build_strategy(name)
    step.logits = [logits.index_fill(-1, torch.tensor([EOS]), -math.inf) for logits in step.logits]
    step.logits[1][1] = math.nan
    with pytest.raises(SearchError) as error:
        run(step, strategy, [4, 4, 4])
    assert str(error.value) == (
        f"sentence 2, token 2: the head's logits of row {strategy.width} hold a NaN, an infinity or no finite number"
    )
    assert (error.value.sentence, error.value.token) == (1, 2)


@every
def test_settings_that_a_strategy_reads_exist_and_are_accepted(name):
    strategy = type(build_strategy(name, temperature=0.9))
    assert strategy.reads <= set(DecodingSettings.model_fields)
    settings = DecodingSettings(strategy=name)
    assert resolve_strategy(settings, [*strategy.reads, "strategy"]) == settings


@every
@given(data=st.data())
def test_settings_that_a_strategy_does_not_read_have_no_effect_and_are_refused(toy, name, data):
    strategy = build_strategy(name)
    others = {"beam": 9, "stop": "first", "samples": 9, "seed": 3, "temperature": 0.3, "top_k": 1, "top_p": 0.2}
    others |= {"coverage_penalty": 0.4, "patience": 2.0, "groups": 2, "diversity": 0.9}
    setting = data.draw(st.sampled_from(sorted(others.keys() - type(strategy).reads) or [None]))
    if setting is None:
        return
    wanted = DecodingSettings(strategy=name, beam=4, samples=4, nbest=strategy.nbest)
    other = strategy_from(wanted.model_copy(update={setting: others[setting]}), KEYS)
    assert run(toy(3), strategy, [4, 4, 4]) == run(toy(3), other, [4, 4, 4])
    with pytest.raises(SettingsError) as error:
        resolve_strategy(wanted, ["strategy", "max_length", setting])
    readers = sorted(each for each in STRATEGIES if setting in type(build_strategy(each)).reads)
    assert str(error.value).startswith(f"decoding.{setting}: strategy '{name}' does not read it, expected ")
    assert all(f"'{reader}'" in str(error.value) for reader in readers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 3, "nbest": 4}, "decoding.nbest: found 4, expected at most beam = 3"),
        ({"strategy": "greedy", "nbest": 2}, "decoding.nbest: found 2, expected 1 for greedy search"),
        ({"strategy": "sampling", "samples": 2, "nbest": 3}, "decoding.nbest: found 3, expected at most samples = 2"),
        ({"strategy": "stochastic", "samples": 2, "nbest": 3}, "decoding.nbest: found 3, expected at most samples = 2"),
        ({"strategy": "diverse", "beam": 4, "nbest": 5}, "decoding.nbest: found 5, expected at most beam = 4"),
        ({"strategy": "diverse", "beam": 6, "groups": 4}, "decoding.groups: found 4, expected a divisor of beam = 6"),
        ({"strategy": "diverse", "beam": 2, "groups": 4}, "decoding.groups: found 4, expected a divisor of beam = 2"),
        (
            {"patience": 2.0, "stop": "optimal"},
            "decoding.patience: found 2.0 with stop = 'optimal', expected stop = 'first'",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(options, message):
    with pytest.raises(SettingsError) as error:
        strategy_from(DecodingSettings(**options))
    assert str(error.value) == message


@pytest.mark.parametrize("build", [
    lambda: BeamSearch(width=2, nbest=3),
    lambda: DiverseBeam(group=BeamSearch(width=1), groups=2, nbest=3),
    lambda: StochasticBeam(keys=torch.tensor([1]), width=2, nbest=3),
])  # fmt: skip
def test_nbest_above_the_width_raises_value_error(build):
    with pytest.raises(ValueError, match=r"^nbest is 3, expected 1 to the width, 2$"):
        build()


def test_a_setting_of_another_strategy_is_refused_in_one_line():
    with pytest.raises(SettingsError) as error:
        resolve_strategy(DecodingSettings(strategy="greedy"), ["prefix", "beam", "strategy"])
    assert str(error.value) == "decoding.beam: strategy 'greedy' does not read it, expected 'beam' or 'diverse'"
    with pytest.raises(SettingsError) as error:
        resolve_strategy(DecodingSettings(), ["top_p"])
    assert str(error.value) == "decoding.top_p: strategy 'beam' does not read it, expected 'sampling'"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_beam_width_chooses_beam_search_unless_the_models_strategy_uses_a_beam(name):
    expected = "diverse" if name == "diverse" else "beam"
    settings = DecodingSettings(strategy=name, beam=3)
    assert resolve_strategy(settings, ["beam"]) == settings.model_copy(update={"strategy": expected})
    assert resolve_strategy(settings, ["max_length"]) == settings
