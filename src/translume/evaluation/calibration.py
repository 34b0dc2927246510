"""Calibration under forced decoding: reliability of a model's probabilities, and temperature scaling.

The confidence of a step is its largest probability; the step is right if the likeliest token is the reference's.
The end mark is also measured separately, because translation models misjudge it most (Kumar and Sarawagi 2019): there
the confidence of a step is p(end), and the step is right if the reference ends there.

`translume.reliability` defines the expected calibration error (ECE).
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
from translume.evaluation.metrics import check_lengths
from translume.reliability import Bins, Reliability
from translume.translator import Translator

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
"""Bounds of the search for a temperature."""
_STEP_TOLERANCE = 1e-5
"""Relative step below which Newton's method has converged."""
_SLOPE_TOLERANCE = 1e-9
"""Slope, in nats per token, below which it has converged too."""

JudgedSteps = Iterable[tuple[NextToken, Tensor]]
"""Predicted distributions of m steps, and the reference tokens [m] of these steps."""
ProgressCallback = Callable[[int], object]
"""Called with the number of tokens processed since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Reliability of forced decoding.

    tokens: of the likeliest token of each step.  end: of the end mark, at every step.
    nll: nats per token; None if the head gives no distribution or a reference token has probability 0.
    impossible: reference tokens of probability 0.  normalised: whether the probabilities sum to one.
    temperature: the temperature applied before measuring.
    """

    tokens: Reliability
    end: Reliability
    nll: float | None
    impossible: int
    normalised: bool
    temperature: float = 1.0

    def __str__(self) -> str:
        """Return two lines, for tokens and for the end mark, each with its definition."""
        kind = "" if self.normalised else "|distribution:no"
        lines = []
        for of, confidence, found in (("tokens", "max p", self.tokens), ("end marks", "p(end)", self.end)):
            lines.append(
                f"ECE|of:{of}|confidence:{confidence}|bins:{len(found.bins)}|forced:yes|T:{self.temperature:.4g}{kind}"
                f" = {found.ece:.4f} (confidence {found.confidence:.4f}, right {found.accuracy:.4f} of {found.count})"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as a JSON object."""
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
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Measure the calibration of a translator under forced decoding of `references`.

    temperature: applied to the predicted distributions first; 1 changes nothing.
    Raises DataError if the lists are empty or differ in length, TranslationError if a text is longer than the model
    reads.
    """
    check_lengths({"sources": sources}, [references])
    end = translator.checkpoint.target_tokenizer.specials.eos
    beliefs = translator.beliefs(zip(sources, references, strict=True))
    return reliability_of(_with_progress(beliefs, progress), end, temperature=temperature)


@torch.no_grad()
def reliability_of(judged: JudgedSteps, end: int, *, temperature: float = 1.0) -> Calibration:
    """Return the calibration of predicted distributions; `end` is the id of the end mark."""
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
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    progress: ProgressCallback | None = None,
) -> Temperature:
    """Fit the temperature that minimises the NLL of `references`, which should not be training data.

    `store_temperature` stores it in the model folder.
    Raises SettingsError if the output head gives no distribution, and the errors of `measure_calibration`.
    """
    check_lengths({"sources": sources}, [references])
    kind = translator.config.model.head.kind

    def judged() -> JudgedSteps:
        return _with_progress(translator.beliefs(zip(sources, references, strict=True)), progress)

    return best_temperature(judged, name=f"the output head '{kind}'")


@torch.no_grad()
def best_temperature(judged: Callable[[], JudgedSteps], *, name: str = "the model") -> Temperature:
    """Fit the temperature with Newton's method, which calls `judged` about five times.

    The NLL is convex in β = 1/T: its derivatives by β are Σ (E_β log p − log p_label) and Σ Var_β log p. Tokens of
    probability 0 keep it at any temperature and are left out.
    """
    low, high, beta = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE, 1.0
    before: float | None = None
    while True:
        nll, slope, curvature, tokens = _derivatives(judged(), beta, name)
        before = nll if before is None else before
        low, high = (low, beta) if slope > 0 else (beta, high)
        step = -slope / curvature if curvature > 0 else math.inf
        if abs(slope) < _SLOPE_TOLERANCE * tokens:
            step = 0.0
        if abs(step) >= _STEP_TOLERANCE * beta and not low < beta + step < high:
            step = math.sqrt(low * high) - beta
        beta += step
        if abs(step) < _STEP_TOLERANCE * beta:
            # Extrapolate the NLL quadratically, which is exact enough this close to the minimum.
            nll += (slope + curvature * step / 2) * step
            return Temperature(value=1 / beta, tokens=tokens, nll_before=before / tokens, nll=nll / tokens)


def _derivatives(judged: JudgedSteps, beta: float, name: str) -> tuple[float, float, float, int]:
    """Return (NLL, first and second derivative by β, token count), summed over the possible tokens."""
    sums, tokens = torch.zeros(3, dtype=torch.float64), 0
    for belief, labels in judged:
        if not belief.normalised:
            raise SettingsError(
                f"temperature: {name} gives no distribution, expected one whose probabilities sum to one"
            )
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
        raise DataError("temperature: no token of the references is possible, expected at least one")
    nll, slope, curvature = sums.tolist()
    return nll, slope, curvature, tokens


def _picked(log_probs: Tensor, ids: Tensor) -> Tensor:
    return log_probs.gather(1, ids[:, None])[:, 0]


def _with_progress(judged: JudgedSteps, progress: ProgressCallback | None) -> Iterator[tuple[NextToken, Tensor]]:
    for belief, labels in judged:
        yield belief, labels
        if progress is not None:
            progress(labels.numel())
