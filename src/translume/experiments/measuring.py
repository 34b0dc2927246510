"""Train a head, measure its quality on the validation set and the time of a decoding step.

This happens in a process of its own, so that its peak memory is its own and a crash ends only it.
"""

import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

import torch

from translume.checkpoint import read_history
from translume.config import Config
from translume.data.corpus import texts_of
from translume.data.token_cache import prepare
from translume.errors import TranslumeError
from translume.evaluation import evaluate
from translume.evaluation.calibration import CalibrationSums
from translume.json_values import JsonValue
from translume.training.events import Event, Finished, Interrupted
from translume.training.interrupt import SignalFlag
from translume.training.validation import spread
from translume.translator import ComputeOptions, Translator
from translume.translator.planning import padded

ROWS, BEST = 64, 10
"""Rows of a timed step, and the k of its top-k."""
STEPS, ROUNDS, SECONDS = 16, 24, 4.0
"""Steps of a timed search, and the maximum number of rounds and seconds."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that are passed on to the worker process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures(JsonValue):
    """The measures of one trained head.

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


def measure_head(folder: Path, config: Config, *, sentences: int, device: str, threads: int | None) -> Measures:
    """Measure the model in `folder` with [evaluation] and [decoding] of `config`.

    nll and ECE are of the whole validation set; `sentences` of it, evenly spread, are translated (0: all).
    """
    translator = Translator.load(folder, ComputeOptions(device=device, threads=threads, engine="plain"))
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
    sums = CalibrationSums(checkpoint.target_tokenizer.specials.eos)
    with torch.no_grad():
        for belief, labels in translator.beliefs(zip(sources, references, strict=True)):
            sums.add(belief, labels)
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
        nll=sums.mean,
        tokens=sums.count,
        impossible=sums.impossible,
        ece=sums.tokens.reliability().ece,
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
    source, mask = padded([[*ids[: longest - 1], *end.source_end] for ids in encoded], end.pad, device)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What to train and measure; see `compare_heads`."""

    config: Config
    folder: Path
    sentences: int
    device: str
    threads: int | None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a task ended. Without measures it was interrupted or failed.

    peak_bytes: peak memory of the training; None if the training had finished before.
    interrupted: the signal's name.  failure: one line.
    """

    measures: Measures | None = None
    peak_bytes: int | None = None
    interrupted: str = ""
    failure: str = ""


def run_in_worker(task: Task, log: Path) -> Generator[Event, None, Outcome]:
    """Yield the events of `train`, the last one Interrupted after a signal; return the outcome.

    log: receives the output of the process, such as a traceback; deleted if there is none.
    The first SIGINT or SIGTERM is passed on, so that the run is saved. A second one ends both processes.
    """
    outcome = Outcome()
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=_run, args=(task, log, sender), daemon=True)

    def pass_on(number: int) -> None:
        if worker.pid is not None:
            os.kill(worker.pid, number)

    log.touch()
    with receiver, SignalFlag(on_signal=pass_on) as signals:
        # Until it has a session of its own, the worker blocks the signals that a terminal sends to all processes.
        ensure_running()  # as the first start of a process would, which unblocks them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        worker.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.close()
        try:
            while True:
                message = receiver.recv()
                match message:
                    case Measures():
                        outcome.measures = message
                    case int():
                        outcome.peak_bytes = message
                    case TranslumeError():
                        outcome.failure = str(message)
                    case _:
                        if isinstance(message, Interrupted):
                            outcome.interrupted = message.signal
                        yield message
        except EOFError:
            worker.join()
        finally:
            worker.kill()
    if worker.exitcode:
        outcome.failure = _exit_reason(worker.exitcode, log)
    if signals.caught and not outcome.interrupted and outcome.measures is None:
        outcome.interrupted, outcome.failure = signals.caught, ""
        yield Interrupted(update=0, signal=signals.caught, folder=task.folder)  # there was nothing to save
    if not log.stat().st_size:
        log.unlink()
    return outcome


def _exit_reason(code: int, log: Path) -> str:
    """Return one line: the signal that ended a process, or else the last line in the log of its output."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    reason = f"killed by {signal.Signals(-code).name}" if code < 0 else (lines or [f"exit code {code}"])[-1]
    return f"{reason} (see {log})" if lines else reason


def _run(task: Task, log: Path, sender: Connection) -> None:
    """Train, then measure, in the worker process; send events, the peak memory, the measures or an error."""
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        _train_and_measure(task, sender)
    except KeyboardInterrupt:  # before the first update, or while measuring: there is nothing to save
        return
    except TranslumeError as error:
        sender.send(error)


def _train_and_measure(task: Task, sender: Connection) -> None:
    from translume.training.train import train

    event = None
    for event in train(task.config, task.folder, device=task.device, threads=task.threads):
        sender.send(event)
    if not (isinstance(event, Finished) and event.already):
        sender.send(peak_bytes())
    if isinstance(event, Finished):
        sender.send(
            measure_head(task.folder, task.config, sentences=task.sentences, device=task.device, threads=task.threads)
        )


def peak_bytes() -> int:
    """Return the peak memory in bytes: of the device if this process has used CUDA, else of the process (resident)."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss includes the process before it became this program
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
