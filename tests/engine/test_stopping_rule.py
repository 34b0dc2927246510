"""When a beam search ends, worked by hand: in the decoding loop and in the kernels, which have the rule once more."""

import math

import pytest
import torch

from translume.checkpoint import build_model
from translume.config import ModelSettings, SoftmaxSettings
from translume.decoding import BeamSearch, Greedy, LengthPenalty, decode, search
from translume.engine import build_engine
from translume.kernels.loading import has_kernels

BOS, EOS, A, B = 1, 2, 3, 4
LIMIT = 5
pytestmark = pytest.mark.skipif(not has_kernels(), reason="no kernels")


def beam(exponent, **options):
    return BeamSearch(width=2, length_penalty=LengthPenalty(exponent=exponent), **options)


# Every token is A with probability 0.6, EOS with 0.3 and B with 0.1, whatever was before. A step finishes Aⁿ EOS with
# 0.6ⁿ · 0.3, and the best live hypothesis has 0.6 to the power of the steps.
CASES = {
    # 0.6³ < 0.3: nothing live can win any more.
    "optimal, by log-probability": (beam(0.0, stop="optimal"), 3, [EOS]),
    # 0.6⁴ < 0.18, the second of two.
    "optimal, two best": (beam(0.0, nbest=2, stop="optimal"), 4, [EOS]),
    # log 0.6 per token, at the limit, is more than any finished hypothesis has.
    "optimal, by mean": (beam(1.0, stop="optimal"), LIMIT, [A] * LIMIT),
    "first two": (beam(1.0, stop="first"), 2, [A, EOS]),
    "first three": (beam(1.0, stop="first", patience=1.5), 3, [A, A, EOS]),
    "first one": (beam(1.0, stop="first", patience=0.5), 1, [EOS]),
    "greedy": (Greedy(), LIMIT, [A] * LIMIT),
}


@pytest.fixture(scope="module")
def engine():
    sizes = ModelSettings(
        width=32, attention_heads=2, feed_forward=48, encoder_layers=1, decoder_layers=1, max_positions=17,
        head=SoftmaxSettings(tie="none"),
    )  # fmt: skip
    model = build_model(sizes, 11, 13).eval()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(-99.0)
        for token, probability in ((A, 0.6), (EOS, 0.3), (B, 0.1)):
            model.head.bias[token] = math.log(probability)
    return build_engine(model)


@pytest.mark.parametrize(("strategy", "steps", "tokens"), CASES.values(), ids=CASES)
def test_a_search_ends_when_the_rule_says(engine, strategy, steps, tokens):
    words = {"bos": BOS, "eos": EOS, "strategy": strategy, "limits": torch.tensor([LIMIT]), "rules": []}
    source, mask = torch.tensor([[5, 6, EOS]]), torch.ones(1, 3, dtype=torch.bool)
    beams = list(decode(engine.step, engine.start(source, mask), **words))
    ((best, *_),) = search(engine.step, engine.start(source, mask), **words)
    assert (len(beams), [*best.tokens]) == (steps, tokens)

    running, (number,) = engine.complete_search(
        engine.start(source, mask), prompts=torch.tensor([[BOS]]), running=None,
        **{name: each for name, each in words.items() if name != "bos"},
    )  # fmt: skip
    taken = 0
    while running.live:
        running.run(1)
        taken += 1
    assert (taken, [*running.hypotheses(number)[0].tokens]) == (steps, tokens)
