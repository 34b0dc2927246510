"""Measure a trained head: its quality on the validation set, and the time of a decoding step."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import read_history
from translume.config import Config
from translume.data import prepare
from translume.data.corpus import texts_of
from translume.evaluation import evaluate
from translume.evaluation.calibration import JudgedSteps, reliability_of
from translume.training.validation import spread
from translume.translator import Translator, load_translator
from translume.translator.planning import padded

ROWS, BEST = 64, 10
"""Rows of a timed step, and the k of its top-k."""
STEPS, ROUNDS, SECONDS = 16, 24, 4.0
"""Steps of a timed search, and the maximum number of rounds and seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measures of one trained head.

    normalised, full_support, exact_loss: properties of the head (see `Head`).
    tokens_per_second: target tokens in training, the median over the lines of its history; None without any.
    nll: mean −log p in nats of the `tokens` reference tokens, end marks included, without the `impossible` ones, whose
    probability is zero; None if all are.
    ece: expected calibration error of the likeliest token in forced decoding.  scores: name, value and signature
    of each metric.  sentences: how many were translated for them.
    head_milliseconds, step_milliseconds: for 64 rows, the head's share of a decoding step and the whole step.
    """

    updates: int
    parameters: int
    device: str
    threads: int
    normalised: bool
    full_support: bool
    exact_loss: bool
    tokens_per_second: float | None
    nll: float | None
    tokens: int
    impossible: int
    ece: float
    scores: tuple[tuple[str, float, str], ...]
    sentences: int
    head_milliseconds: float
    step_milliseconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return values for JSON, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Invert `to_dict`. Raises KeyError or TypeError for other mappings."""
        known = {field.name: values[field.name] for field in fields(cls)}
        scores = tuple((str(name), float(value), str(signature)) for name, value, signature in known["scores"])
        return cls(**{**known, "scores": scores})


class Costs:
    """Sums −log p of reference tokens while the same predicted distributions are used elsewhere."""

    def __init__(self) -> None:
        self.total, self.tokens, self.impossible = 0.0, 0, 0

    def add(self, judged: JudgedSteps) -> Iterator[tuple[NextToken, Tensor]]:
        """Pass distributions and labels [m] through, and add them to the sums."""
        for belief, labels in judged:
            costs = -belief.log_prob_of(labels[:, None]).double()
            possible = costs.isfinite()
            self.total += float(costs[possible].sum())
            self.tokens += labels.numel()
            self.impossible += labels.numel() - int(possible.sum())
            yield belief, labels

    @property
    def mean(self) -> float | None:
        """The mean over tokens with a probability above zero; None if there are none."""
        possible = self.tokens - self.impossible
        return self.total / possible if possible else None


def measure_head(folder: Path, config: Config, *, sentences: int, device: str, threads: int | None) -> Measures:
    """Measure the model in `folder` with [evaluation] and [decoding] of `config`.

    nll and ECE are of the whole validation set; `sentences` of it, evenly spread, are translated (0: all).
    """
    translator = load_translator(folder, device=device, threads=threads, engine="plain")
    checkpoint = translator.checkpoint
    corpus = prepare(
        config.data,
        checkpoint.source_tokenizer,
        checkpoint.target_tokenizer,
        folder / "cache",
        split="valid",
        max_positions=config.model.max_positions,
        language_tags=config.model.language_tags,
    )
    sources, references = texts_of(corpus, range(corpus.pairs))
    costs, end = Costs(), checkpoint.target_tokenizer.specials.eos
    beliefs = translator.beliefs(zip(sources, references, strict=True))
    calibration = reliability_of(costs.add(beliefs), end)
    chosen = spread(corpus.pairs, sentences)
    scores = evaluate(
        translator,
        [sources[number] for number in chosen],
        [references[number] for number in chosen],
        config.scoring,
        # A temperature may have been fitted to one head and not to another.
        decoding=config.decoding.model_copy(update={"calibrated": False}),
    )
    head_time, step_time = step_milliseconds(translator, [sources[number] for number in spread(corpus.pairs, ROWS)])
    head, history = checkpoint.model.head, read_history(folder)
    return Measures(
        updates=max((record["update"] for record in history if record.get("event") == "finished"), default=0),
        parameters=sum(value.numel() for value in checkpoint.model.parameters()),
        device=str(next(checkpoint.model.parameters()).device),
        threads=torch.get_num_threads(),
        normalised=head.normalised,
        full_support=head.full_support,
        exact_loss=head.exact_loss,
        tokens_per_second=_speed(history),
        nll=costs.mean,
        tokens=costs.tokens,
        impossible=costs.impossible,
        ece=calibration.tokens.ece,
        scores=tuple((score.name, score.value, score.signature) for score in scores),
        sentences=len(chosen),
        head_milliseconds=head_time,
        step_milliseconds=step_time,
    )


def _speed(history: Sequence[dict[str, Any]]) -> float | None:
    """Return the median speed of the progress lines, which is robust to short load from other processes."""
    speeds = [record["tokens_per_second"] for record in history if record.get("event") == "progress"]
    return statistics.median(speeds) if speeds else None


@torch.no_grad()
def step_milliseconds(translator: Translator, sources: Sequence[str]) -> tuple[float, float]:
    """Return the time of (head, whole step): medians over 16 steps of greedy decoding of 64 rows.

    head: from hidden states to the 10 best tokens.  whole step: including the decoder layers.  The fastest of several
    rounds counts for each step, since load from other processes can only make it slower.
    """
    checkpoint = translator.checkpoint
    model, longest = checkpoint.model, translator.config.model.max_positions
    device = next(model.parameters()).device
    end, begin = checkpoint.source_tokenizer.specials, checkpoint.target_tokenizer.specials.bos
    encoded = checkpoint.source_tokenizer.encode_all([sources[row % len(sources)] for row in range(ROWS)])
    source, mask = padded([[*ids[: longest - 1], end.eos] for ids in encoded], end.pad, device)
    now = _clock(device)
    steps = min(STEPS, longest)
    head_times, step_times = [math.inf] * steps, [math.inf] * steps
    started = time.monotonic()
    for number in range(1 + ROUNDS):
        if number > 1 and time.monotonic() - started > SECONDS:
            break
        state = model.start(source, mask)
        prefix = torch.full((ROWS, 1), begin, device=device)
        for step in range(steps):
            first = now()
            hidden, state = model.decoder(prefix[:, state.position :], state)
            between = now()
            best = model.head.next_token(hidden[:, -1], state.context).topk(BEST)
            last = now()
            prefix = torch.cat([prefix, best.ids[:, :1]], 1)
            if number:  # the first round warms up
                head_times[step] = min(head_times[step], last - between)
                step_times[step] = min(step_times[step], last - first)
    return 1000 * statistics.median(head_times), 1000 * statistics.median(step_times)


def _clock(device: torch.device) -> Callable[[], float]:
    """Return a clock in seconds that waits until the device has finished its work."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
