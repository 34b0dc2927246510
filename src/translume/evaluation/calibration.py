"""Calibration under forced decoding: reliability of a model's probabilities, and temperature scaling.

The confidence of a step is its largest probability; the step is right if the likeliest token is the reference's.
EOS is also measured separately, because translation models misjudge it most (Kumar and Sarawagi 2019): there the
confidence of a step is p(EOS), and the step is right if the reference ends there.

Predictions made with confidence c should be correct with frequency c. Steps are counted in 15 bins of equal width by
confidence, bin b covering (b/15, (b+1)/15]. The expected calibration error (ECE) is Σ_b n_b/n · |accuracy − mean
confidence| (Guo et al. 2017, sec. 2).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from translume.belief import NextToken
from translume.checkpoint import Temperature
from translume.decoding import Tempered
from translume.errors import DataError, SettingsError
from translume.evaluation.metrics import check_lengths
from translume.json_values import JsonValue
from translume.lazy import Tensor, no_grad, torch
from translume.translator import Translator

BINS = 15
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
"""Bounds of the search for a temperature."""
_STEP_TOLERANCE = 1e-5
"""Relative step below which Newton's method has converged."""
_SLOPE_TOLERANCE = 1e-9
"""Slope, in nats per token, below which it has also converged."""

JudgedSteps = Iterable[tuple[NextToken, Tensor]]
"""Predicted distributions of m steps, and the reference tokens [m] of these steps."""
ProgressCallback = Callable[[int], object]
"""Called with the number of tokens processed since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Steps whose confidence is above `low` and at most `high`.

    confidence: their mean.  accuracy: the fraction of correct ones.  Both are None if there are no steps.
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability(JsonValue):
    """Calibration figures of a set of steps.

    ece: expected calibration error, 0 to 1.  count: number of steps.  confidence: their mean.
    accuracy: the fraction of correct ones.
    """

    ece: float
    count: int
    confidence: float
    accuracy: float
    bins: tuple[Bin, ...]

    def described(self, of: str, confidence: str, more: str = "") -> str:
        """Return one line with the calibration error and its definition.  of, confidence: what has which.

        more: of the definition.
        """
        return (
            f"ECE|of:{of}|confidence:{confidence}|bins:{len(self.bins)}{more} = {self.ece:.4f} "
            f"(confidence {self.confidence:.4f}, right {self.accuracy:.4f} of {self.count})"
        )


class Bins:
    """Accumulates steps in bins by confidence, optionally in groups."""

    def __init__(self, count: int = BINS, groups: int = 1) -> None:
        self._sums = torch.zeros(3, groups, count, dtype=torch.float64)

    def add(self, confidence: Tensor, right: Tensor, group: Tensor | int = 0) -> None:
        """Add m steps.  confidence: [m], 0 to 1.  right: [m], whether each is correct.  group: [m], or one for all."""
        size = self._sums.size(2)
        confidence = confidence.double().cpu()
        place = ((confidence * size).ceil().long() - 1).clamp_(0, size - 1)
        rows = torch.stack([torch.ones_like(confidence), confidence, right.double().cpu()])
        where = torch.as_tensor(group, device="cpu") * size + place
        self._sums.flatten(1).index_add_(1, where, rows)

    def reliability(self, groups: Tensor | None = None) -> Reliability:
        """Return the figures of all groups, or of `groups`; raise DataError if there are no steps."""
        sums = self._sums if groups is None else self._sums[:, groups]
        counts, confidence, right = sums.sum(1).tolist()
        total = sum(counts)
        if not total:
            raise DataError("calibration: found no tokens, expected at least one")
        bins = tuple(
            Bin(
                low=place / len(counts),
                high=(place + 1) / len(counts),
                count=int(n),
                confidence=confidence[place] / n if n else None,
                accuracy=right[place] / n if n else None,
            )
            for place, n in enumerate(counts)
        )
        gaps = (abs(expected - actual) for expected, actual in zip(confidence, right, strict=True))
        return Reliability(
            ece=math.fsum(gaps) / total,
            count=int(total),
            confidence=sum(confidence) / total,
            accuracy=sum(right) / total,
            bins=bins,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(JsonValue):
    """Reliability of forced decoding.

    tokens: of the likeliest token of each step.  end: of EOS, at every step.
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
        """Return two lines, for tokens and for EOS, each with its definition."""
        how = f"|forced:yes|T:{self.temperature:.4g}{'' if self.normalised else '|distribution:no'}"
        tokens, ends = self.tokens.described("tokens", "max p", how), self.end.described("EOS tokens", "p(end)", how)
        return f"{tokens}\n{ends}"


def measure_calibration(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    temperature: float = 1.0,
    documents: Sequence[Hashable] | bool = False,
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Measure the calibration of a translator under forced decoding of `references`.

    temperature: applied to the predicted distributions first; 1 changes nothing.  documents: as in `score_all`.
    Raises DataError if the lists are empty or differ in length, TranslationError if a text is longer than the model
    reads.
    """
    check_lengths({"sources": sources}, [references])
    pairs = zip(sources, references, strict=True)
    judged = _with_progress(translator.beliefs(pairs, documents=documents), progress)
    return reliability_of(judged, translator.checkpoint.target_tokenizer.specials.eos, temperature=temperature)


class CalibrationSums:
    """Sums over the steps of forced decoding, from which their calibration follows.

    tokens, ends: bins by the largest probability, and by p(EOS).
    count: reference tokens.  impossible: those of probability 0.  nll: the sum of −log p of the others, in nats.
    """

    def __init__(self, eos: int, groups: int = 1) -> None:
        """groups: of the bins in `tokens`: the size of the vocabulary for a group for each likeliest token, or 1."""
        self.tokens, self.ends = Bins(groups=groups), Bins()
        self._grouped = groups > 1
        self.count = self.impossible = 0
        self.nll, self.normalised, self.eos = 0.0, True, eos

    def add(self, belief: NextToken, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add m steps; return log p [m, V], the likeliest tokens [m], and log p [m] of the labels in fp64."""
        log_probs = belief.log_probs()
        confidence, best = log_probs.max(-1)
        self.tokens.add(confidence.exp(), best == labels, best.cpu() if self._grouped else 0)
        self.ends.add(log_probs[:, self.eos].exp(), labels == self.eos)
        picked = _picked(log_probs, labels).double()
        possible = picked.isfinite()
        self.nll -= float(picked[possible].sum())
        self.impossible += int((~possible).sum())
        self.count += labels.numel()
        self.normalised = self.normalised and belief.normalised
        return log_probs, best, picked

    @property
    def mean(self) -> float | None:
        """The mean of −log p over the possible tokens; None if there are none."""
        return self.nll / (self.count - self.impossible) if self.count > self.impossible else None


@no_grad()
def reliability_of(judged: JudgedSteps, eos: int, *, temperature: float = 1.0) -> Calibration:
    """Return the calibration of predicted distributions; eos: the id of EOS."""
    sums = CalibrationSums(eos)
    for belief, labels in judged:
        sums.add(belief if temperature == 1.0 else Tempered(belief, temperature), labels)
    return Calibration(
        tokens=sums.tokens.reliability(),
        end=sums.ends.reliability(),
        nll=sums.mean if sums.normalised and not sums.impossible else None,
        impossible=sums.impossible,
        normalised=sums.normalised,
        temperature=temperature,
    )


def fit_temperature(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    documents: Sequence[Hashable] | bool = False,
    progress: ProgressCallback | None = None,
) -> Temperature:
    """Fit the temperature that minimises the NLL of `references`, which should not be training data.

    documents: as in `score_all`.  `store_temperature` stores the temperature in the model folder.
    Raises SettingsError if the output head gives no distribution, and the errors of `measure_calibration`.
    """
    check_lengths({"sources": sources}, [references])
    kind = translator.config.model.head.kind

    def judged() -> JudgedSteps:
        pairs = zip(sources, references, strict=True)
        return _with_progress(translator.beliefs(pairs, documents=documents), progress)

    return best_temperature(judged, name=f"the output head '{kind}'")


@no_grad()
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
