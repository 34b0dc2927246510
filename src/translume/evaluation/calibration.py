"""Whether a model's probabilities mean what they say, when it is given the reference word by word (forced decoding).

A token's confidence is the largest probability of its step, and it is right if the likeliest token is the reference's.
The end mark is looked at by itself as well, since it is what translation models misjudge most (Kumar and Sarawagi
2019): at every step the confidence is p(end), and right means that the reference ends there.

ECE, the expected calibration error, is what `translume.reliability` says.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import Temperature
from translume.decoding import Tempered
from translume.errors import DataError, SettingsError
from translume.evaluation.measure import check_lengths
from translume.reliability import Bins, Reliability
from translume.translator import Translator

COLDEST, HOTTEST = 0.05, 20.0
"""Temperatures between which one is looked for."""
_NEAR = 1e-5
"""A relative step below which Newton's method has arrived."""
_FLAT = 1e-9
"""A slope in nats per token below which it has arrived too: there is nothing left to win."""

Judged = Iterable[tuple[NextToken, Tensor]]
"""Beliefs, and which tokens [m] the reference goes on with."""
Seen = Callable[[int], object]
"""Told how many tokens were looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Reliability of forced decoding.

    tokens: of the likeliest token.  end: of the end mark, at every step.
    nll: nats per token; None where the head gives no distribution or some reference's token is impossible.
    impossible: reference tokens without any probability.  normalised: whether the beliefs sum to one.
    temperature: what the beliefs were tempered by.
    """

    tokens: Reliability
    end: Reliability
    nll: float | None
    impossible: int
    normalised: bool
    temperature: float = 1.0

    def __str__(self) -> str:
        """Two lines: tokens and the end mark, each with its definition."""
        kind = "" if self.normalised else "|distribution:no"
        lines = []
        for of, confidence, found in (("tokens", "max p", self.tokens), ("end marks", "p(end)", self.end)):
            lines.append(
                f"ECE|of:{of}|confidence:{confidence}|bins:{len(found.bins)}|forced:yes|T:{self.temperature:.4g}{kind}"
                f" = {found.ece:.4f} (confidence {found.confidence:.4f}, right {found.accuracy:.4f} of {found.count})"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them."""
        return {
            "temperature": self.temperature,
            "normalised": self.normalised,
            "nll": self.nll,
            "impossible": self.impossible,
            "tokens": self.tokens.to_dict(),
            "end": self.end.to_dict(),
        }


def measure_calibration(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    temperature: float = 1.0,
    seen: Seen | None = None,
) -> Calibration:
    """How far a translator's probabilities can be believed, when it reads `references`.

    temperature: beliefs are tempered by it first; 1 leaves them as the model gives them.  seen: told of progress.
    Raises DataError where there is nothing to measure or the lists are not of one length, TranslationError where a
    text is longer than the model reads.
    """
    check_lengths({"sources": sources}, [references])
    end = translator.checkpoint.target_tokenizer.specials.eos
    beliefs = translator.beliefs(zip(sources, references, strict=True))
    return reliability_of(_watched(beliefs, seen), end, temperature=temperature)


@torch.no_grad()
def reliability_of(judged: Judged, end: int, *, temperature: float = 1.0) -> Calibration:
    """The calibration of any beliefs; `end` is the id of the end mark."""
    tokens, ends = Bins(), Bins()
    total, count, impossible, normalised = 0.0, 0, 0, True
    for own, labels in judged:
        belief = own if temperature == 1.0 else Tempered(own, temperature)
        normalised = normalised and belief.normalised
        log_probs = belief.log_probs()
        confidence, best = log_probs.max(-1)
        tokens.add(confidence.exp(), best == labels)
        ends.add(log_probs[:, end].exp(), labels == end)
        costs = -_picked(log_probs, labels).double()
        impossible += int(costs.isinf().sum())
        total += float(costs.sum())
        count += labels.numel()
    return Calibration(
        tokens=tokens.reliability(),
        end=ends.reliability(),
        nll=total / count if normalised and not impossible else None,
        impossible=impossible,
        normalised=normalised,
        temperature=temperature,
    )


def fit_temperature(
    translator: Translator, sources: Sequence[str], references: Sequence[str], *, seen: Seen | None = None
) -> Temperature:
    """The temperature with the least nll of `references`; they should be none that the model was trained on.

    `store_temperature` keeps it with the model.
    Raises SettingsError where the model's beliefs are no distributions, and what `measure_calibration` raises.
    """
    check_lengths({"sources": sources}, [references])
    kind = translator.config.model.head.kind

    def judged() -> Judged:
        return _watched(translator.beliefs(zip(sources, references, strict=True)), seen)

    return best_temperature(judged, name=f"the output head '{kind}'")


@torch.no_grad()
def best_temperature(judged: Callable[[], Judged], *, name: str = "the model") -> Temperature:
    """The temperature with the least nll of beliefs, which are read some five times, by Newton's method.

    The nll is convex in β = 1/T: its derivatives by β are Σ (E_β log p − log p_label) and Σ Var_β log p. Tokens
    without any probability have none at any temperature and are left out.
    """
    low, high, beta = 1 / HOTTEST, 1 / COLDEST, 1.0
    before: float | None = None
    while True:
        nll, slope, bend, tokens = _derivatives(judged(), beta, name)
        before = nll if before is None else before
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = -slope / bend if bend > 0 else math.inf
        if abs(slope) < _FLAT * tokens:
            step = 0.0
        if abs(step) >= _NEAR * beta and not low < beta + step < high:
            step = math.sqrt(low * high) - beta
        beta += step
        if abs(step) < _NEAR * beta:
            # The nll at the last step comes from its parabola: so near to the minimum the two are one.
            nll += (slope + bend * step / 2) * step
            return Temperature(value=1 / beta, tokens=tokens, nll_before=before / tokens, nll=nll / tokens)


def _derivatives(judged: Judged, beta: float, name: str) -> tuple[float, float, float, int]:
    """(nll, its first and second derivative by β, tokens): sums over the tokens that are possible."""
    sums, tokens = torch.zeros(3, dtype=torch.float64), 0
    for belief, labels in judged:
        if not belief.normalised:
            raise SettingsError(f"temperature: {name} gives no distribution, wanted one whose probabilities sum to one")
        log_probs = belief.log_probs().double()
        picked = _picked(log_probs, labels)
        possible = picked.isfinite()
        log_probs, picked = log_probs[possible], picked[possible]
        scaled = log_probs * beta
        normaliser = scaled.logsumexp(-1)
        share = (scaled - normaliser[:, None]).exp()
        log_probs = log_probs.masked_fill(log_probs.isneginf(), 0.0)  # where the share is 0
        mean = (share * log_probs).sum(-1)
        spread = (share * (log_probs - mean[:, None]).square()).sum(-1)
        sums += torch.stack([(normaliser - beta * picked).sum(), (mean - picked).sum(), spread.sum()]).cpu()
        tokens += picked.numel()
    if not tokens:
        raise DataError("temperature: no token of the references is possible, wanted at least one")
    nll, slope, bend = sums.tolist()
    return nll, slope, bend, tokens


def _picked(log_probs: Tensor, ids: Tensor) -> Tensor:
    return log_probs.gather(1, ids[:, None])[:, 0]


def _watched(judged: Judged, seen: Seen | None) -> Iterator[tuple[NextToken, Tensor]]:
    for belief, labels in judged:
        yield belief, labels
        if seen is not None:
            seen(labels.numel())
