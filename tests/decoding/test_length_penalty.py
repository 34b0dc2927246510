"""Length penalties on an automaton worked out by hand."""

import math

import pytest
import torch
from tests.decoding.searching import EmptyState

from translume.belief import Logits
from translume.config.decoding import DecodingSettings
from translume.decoding import BeamSearch, Greedy, LengthPenalty, search, strategy_from

BOS, EOS, WORD = 2, 0, 1


def automaton(prefix, state):
    """Logits that end with probability 1/2, 1/4, 1/8, … at the first, second, third, … token."""
    stop = 0.5 ** prefix.size(1)
    return Logits(torch.tensor([stop, 1 - stop, 0.0]).log().expand(prefix.size(0), -1)), state


HALF, LATER = math.log(0.5), math.log(0.5) + math.log(0.25)
BY_LENGTH = math.log(0.5) + math.log(0.75) + math.log(0.875)


@pytest.mark.parametrize(
    ("form", "exponent", "scores"),
    [
        ("power", 0.0, {1: HALF, 2: LATER, 3: BY_LENGTH}),
        ("gnmt", 0.0, {1: HALF, 2: LATER, 3: BY_LENGTH}),
        ("power", 1.0, {1: -0.693147, 2: -1.039721, 3: -0.371454}),
        ("power", 0.5, {1: -0.693147, 2: -1.470387, 3: -0.643376}),
        ("gnmt", 1.0, {1: -0.693147, 2: -1.782378, 3: -0.835770}),
        ("gnmt", 0.6, {1: -0.693147, 2: -1.895739, 3: -0.937697}),
        ("power", -1.0, {1: -0.693147, 2: -4.158883, 3: -3.343082}),
    ],
)
def test_scores_follow_the_definition_of_each_penalty(form, exponent, scores):
    strategy = BeamSearch(width=3, nbest=3, length_penalty=LengthPenalty(form=form, exponent=exponent))
    limits = torch.tensor([3])
    (found,) = search(automaton, EmptyState(), bos=BOS, eos=EOS, strategy=strategy, limits=limits)
    by_tokens = {(EOS,): scores[1], (WORD, EOS): scores[2], (WORD, WORD, WORD): scores[3]}
    wanted = sorted(by_tokens.items(), key=lambda item: -item[1])
    named = [(h.tokens, h.score) for h in found if h.tokens in by_tokens]
    assert [tokens for tokens, _ in named] == [tokens for tokens, _ in wanted][: len(named)]
    assert [score for _, score in named] == pytest.approx([by_tokens[tokens] for tokens, _ in named], abs=1e-6)
    assert named[0][0] == wanted[0][0]


def test_settings_build_the_named_strategy():
    assert strategy_from(DecodingSettings(beam=1)) == Greedy()
    assert strategy_from(DecodingSettings(strategy="greedy")) == Greedy()
    settings = DecodingSettings(beam=7, nbest=2, length_penalty=0.6, length_penalty_form="gnmt", stop="first")
    penalty = LengthPenalty(form="gnmt", exponent=0.6)
    assert strategy_from(settings) == BeamSearch(width=7, nbest=2, length_penalty=penalty, stop="first")
