"""Measure a trained model: its quality on the validation set, and the time of a decoding step."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from translume.checkpoint import read_history
from translume.config import Config
from translume.data.corpus import TokenizedCorpus, texts_of
from translume.data.token_cache import prepare
from translume.evaluation import evaluate
from translume.evaluation.calibration import CalibrationSums
from translume.json_values import JsonValue
from translume.tasks import task_of
from translume.text import Labels, Tokenizer
from translume.training.validation import spread
from translume.translator import ComputeOptions, Translator
from translume.translator.planning import padded_arrays, tensors_of

ROWS, BEST = 64, 10
"""Rows of a timed step, and the k of its top-k."""
STEPS, ROUNDS, SECONDS = 16, 24, 4.0
"""Steps of a timed search, and the maximum number of rounds and seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures(JsonValue):
    """The measures of one trained model. Only those of `measure_training` are known if it does not translate text.

    normalised, full_support, exact_loss: properties of the head (see `Head`).
    tokens_per_second: target tokens in training, the median over the lines of its history; None without any.
    nll: mean −log p in nats of the `tokens` reference tokens, EOS included, without the `impossible` ones, whose
    probability is zero; None if all are.
    ece: expected calibration error of the likeliest token in forced decoding.  scores: name, value and signature
    of each metric.  sentences: how many were translated for them.
    head_milliseconds, step_milliseconds: for 64 rows, the head's share of a decoding step and the whole step.
    """

    updates: int
    parameters: int
    device: str
    threads: int
    normalised: bool = True
    full_support: bool = True
    exact_loss: bool = True
    tokens_per_second: float | None
    nll: float | None
    tokens: int = 0
    impossible: int = 0
    ece: float | None = None
    scores: tuple[tuple[str, float, str], ...]
    sentences: int = 0
    head_milliseconds: float | None = None
    step_milliseconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(JsonValue):
    """Measures, and the translated sentences with their references."""

    measures: Measures
    sources: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    translations: tuple[str, ...] = ()


def measure(folder: Path, config: Config, *, sentences: int, device: str, threads: int | None) -> Measured:
    """Measure the model in `folder` with [evaluation] and [decoding] of `config`.

    nll and ECE are of the whole validation set; `sentences` of it, evenly spread, are translated (0: all).
    """
    several = config.model.language_tags != "none"
    if several or config.data.source.reader or config.data.context.used or not task_of(config).sequence_to_sequence:
        return measure_training(folder)
    translator = Translator.load(folder, ComputeOptions(device=device, threads=threads, engine="plain"))
    checkpoint = translator.checkpoint
    corpus = validation_corpus(config, checkpoint.source_tokenizer, checkpoint.target_tokenizer, folder)
    sources, references = texts_of(corpus, range(corpus.pairs))
    sums = CalibrationSums(checkpoint.target_tokenizer.specials.eos)
    with torch.no_grad():
        for belief, labels in translator.beliefs(zip(sources, references, strict=True)):
            sums.add(belief, labels)
    head_time, step_time = step_milliseconds(translator, [sources[number] for number in spread(corpus.pairs, ROWS)])
    chosen = spread(corpus.pairs, sentences)
    sources, references = ([texts[number] for number in chosen] for texts in (sources, references))
    # A temperature may have been fitted to one head and not to another.
    decoding = config.decoding.model_copy(update={"calibrated": False})
    scores = evaluate(translator, sources, references, config.scoring, decoding=decoding)
    head, history = checkpoint.model.head, read_history(folder)
    measures = Measures(
        updates=max((record["update"] for record in history if record.get("event") == "finished"), default=0),
        parameters=sum(value.numel() for value in checkpoint.model.parameters()),
        device=str(next(checkpoint.model.parameters()).device),
        threads=torch.get_num_threads(),
        normalised=head.normalised,
        full_support=head.full_support,
        exact_loss=head.exact_loss,
        tokens_per_second=_speed(history),
        nll=sums.mean,
        tokens=sums.count,
        impossible=sums.impossible,
        ece=sums.tokens.reliability().ece,
        scores=tuple((score.name, score.value, score.signature) for score in scores),
        sentences=len(chosen),
        head_milliseconds=head_time,
        step_milliseconds=step_time,
    )
    texts = {"sources": tuple(sources), "references": tuple(references), "translations": scores.translations}
    return Measured(measures=measures, **texts)


def validation_corpus(config: Config, source: Tokenizer, target: Tokenizer | Labels, folder: Path) -> TokenizedCorpus:
    """Return the validation set of the model in `folder`, as its training tokenized it."""
    return prepare(
        config.data,
        source,
        target,
        folder / "cache",
        split="valid",
        max_positions=config.model.positions_of_sides,
        language_tags=config.model.language_tags,
    )


def measure_training(folder: Path) -> Measured:
    """Return what the training measured at its end: of a classifier, for example, or a model of several languages."""
    history = read_history(folder)
    last = {record.get("event"): record for record in history}
    started, finished = last["started"], last["finished"]
    values = {name: started[name] for name in ("parameters", "device", "threads")}
    values["nll"] = finished["nll"] if finished["measure"] == "nll" else None
    values["scores"] = [(name, value, "") for name, value in finished["metrics"].items()]
    values |= {"updates": finished["update"], "tokens_per_second": _speed(history)}
    return Measured(measures=Measures.from_dict(values))


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
    arrays = padded_arrays([[*ids[: longest - 1], *end.source_end] for ids in encoded], end.pad)
    source, mask = tensors_of(arrays, device)
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
