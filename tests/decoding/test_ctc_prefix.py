"""The rule that guides a search by CTC."""

from itertools import groupby, product

import pytest
import torch

from translume.decoding import CtcPrefix, RuleContext

BLANK, EOS, SIZE = 1, 0, 5


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in groupby(path) if token != BLANK)


def begins_with(log_probs: torch.Tensor, prefix: tuple[int, ...], *, whole: bool = False) -> float:
    """Return log of the probability of all paths whose tokens begin with a prefix, or are the prefix."""
    total = 0.0
    for path in product(range(SIZE), repeat=len(log_probs)):
        tokens = collapsed(path)
        if tokens == prefix if whole else tokens[: len(prefix)] == prefix:
            total += float(log_probs.double()[torch.arange(len(path)), list(path)].sum().exp())
    return float(torch.tensor(total).log())


def bias(rule: CtcPrefix, prefixes: list[tuple[int, ...]], sentences: list[int]) -> torch.Tensor:
    """Return what the rule adds to each token [N, V] after the prefixes."""
    rows = torch.tensor([(BLANK, *prefix) for prefix in prefixes])
    context = RuleContext(
        eos=EOS,
        size=SIZE,
        step=len(prefixes[0]),
        sentences=torch.tensor(sentences),
        limits=torch.full((len(prefixes),), 99),
    )
    found = rule(rows, context)
    assert found is not None
    return found.add_to(torch.zeros(len(prefixes), SIZE))


def test_the_sum_of_a_hypothesis_is_its_probability_over_all_alignments() -> None:
    torch.manual_seed(5)
    log_probs = torch.randn(2, 5, SIZE).log_softmax(-1)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    rule = CtcPrefix(log_probs, mask, BLANK, weight=0.7)
    steps = [
        ([(), ()], [0, 1]),
        ([(2,), (3,), (4,), (3,)], [0, 0, 1, 1]),
        ([(3, 3), (2, 4), (3, 2), (4, 4)], [0, 0, 1, 1]),  # rows have changed their places; tokens repeat
        ([(2, 4, 2), (3, 3, 2), (3, 2, 4), (3, 2, 2)], [0, 0, 1, 1]),
    ]
    for prefixes, sentences in steps:
        found = bias(rule, prefixes, sentences)
        for row, (prefix, sentence) in enumerate(zip(prefixes, sentences, strict=True)):
            own = log_probs[sentence][mask[sentence]]
            begun = begins_with(own, prefix)
            for token in (2, 3, 4):
                expected = max(begins_with(own, (*prefix, token)), -1e4) - max(begun, -1e4)
                assert found[row, token].item() == pytest.approx(0.7 * expected, rel=1e-4, abs=1e-4)
            ended = max(begins_with(own, prefix, whole=True), -1e4) - max(begun, -1e4)
            assert found[row, EOS].item() == pytest.approx(0.7 * ended, rel=1e-4, abs=1e-4)


def test_a_target_longer_than_its_source_is_not_forbidden() -> None:
    rule = CtcPrefix(torch.zeros(1, 1, SIZE).log_softmax(-1), torch.ones(1, 1, dtype=torch.bool), BLANK, weight=1.0)
    for prefix in ((), (2,), (2, 3), (2, 3, 4)):
        found = bias(rule, [prefix], [0])
        assert found.isfinite().all()
        assert (found <= 0).all()
    assert found.abs().max() == 0  # every continuation of an impossible prefix is as impossible
