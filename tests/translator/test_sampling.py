"""Sampled translations depend only on the seed and the text, not on the batch or the order of a file."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from translume.config import DecodingSettings
from translume.config.decoding import STRATEGIES
from translume.translator import Translator

Make = Callable[..., Translator]
lines = st.lists(st.text("abcde .", min_size=1, max_size=12), min_size=1, max_size=5)
DRAWING = [
    {"strategy": "sampling", "samples": 3, "nbest": 3},
    {"strategy": "sampling", "samples": 2, "top_p": 0.8, "temperature": 1.3},
    {"strategy": "sampling", "samples": 12, "utility": "chrf"},
    {"strategy": "stochastic", "samples": 3, "nbest": 3},
]


@pytest.mark.parametrize("options", DRAWING)
@settings(max_examples=6, deadline=None)
@given(texts=lines, max_tokens=st.sampled_from([17, 61, 4096]), seed=st.integers(0, 9), order=st.randoms())
def test_the_same_seed_gives_the_same_samples_alone_batched_and_reordered(
    translator: Translator, options: dict[str, object], texts: list[str], max_tokens: int, seed: int, order
) -> None:
    chosen = DecodingSettings(**options, seed=seed, max_tokens=max_tokens, max_length=7)

    def found(texts: list[str]) -> list[list[str]]:
        return [[h.text for h in each.hypotheses] for each in translator.translate_all(texts, settings=chosen)]

    together = found(texts)
    assert together == [found([text])[0] for text in texts]
    shuffled = list(enumerate(texts))
    order.shuffle(shuffled)
    assert found([text for _, text in shuffled]) == [together[place] for place, _ in shuffled]


def test_another_seed_gives_another_translation(translator: Translator) -> None:
    drawn = {
        translator.translate("abc def", settings=DecodingSettings(strategy="sampling", seed=seed)).text
        for seed in range(8)
    }
    assert len(drawn) > 1


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_forced_decoding_reproduces_every_log_probability(make: Make, name: str) -> None:
    translator = make()
    found = list(
        translator.translate_all(["abc def", "hij", "k. l"], settings=DecodingSettings(strategy=name, samples=4))
    )
    pairs = [(each.source, hypothesis) for each in found for hypothesis in each.hypotheses]
    assert pairs
    for (_, hypothesis), score in zip(pairs, translator.score_all(pairs), strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert score.token_log_probs == pytest.approx(hypothesis.token_log_probs, abs=1e-4)


def test_many_samples_reduce_the_batch_size(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from translume.translator import search as module

    sizes: list[tuple[int, int]] = []
    prepare = module.prepare_search

    def counted(checkpoint, pieces, settings, *rest):
        sizes.append((settings.samples, len(pieces)))
        return prepare(checkpoint, pieces, settings, *rest)

    monkeypatch.setattr(module, "prepare_search", counted)
    for samples in (2, 8, 32):
        chosen = DecodingSettings(strategy="sampling", samples=samples, max_tokens=16 * 8, max_length=3)
        list(make().translate_all(["abc"] * 8, settings=chosen))
    assert sizes == [(2, 8), *[(8, 2)] * 4, *[(32, 1)] * 8]
