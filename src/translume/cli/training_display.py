"""The display of a training run: a bar on a terminal, lines in a log, JSON objects with --json."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from translume.cli.terminal import (
    DELAY_SECONDS,
    OutputError,
    abandon_output,
    console,
    is_quiet,
    note,
    on_terminal,
    print_json,
    span,
    warn,
)
from translume.parallel import Closing
from translume.training.events import (
    Event,
    Finished,
    Interrupted,
    Preparing,
    Progress,
    Resumed,
    Saved,
    Started,
    Validated,
    Warned,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

LOG_SECONDS = (2.0, 10.0, 60.0)
"""Pauses between lines without a terminal; the last is repeated."""


class TrainingDisplay(Closing):
    """Shows training events as they happen. A context manager, which removes the bar at the end.

    output_error: why standard output cannot be written, if so. The training goes on without printing more events.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.output_error: OutputError | None = None
        self._as_json = as_json
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._logged = time.monotonic()
        self._lines = 0
        self._already = False
        self._notice: Timer | None = None

    def close(self) -> None:
        """Remove the bar."""
        self._cancel_notice()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, event: Event) -> None:
        """Show an event."""
        self._cancel_notice()
        if self._as_json:
            self._print_json(event)
            return
        match event:
            case Progress():
                self._progress(event)
            case Preparing(what="tokenizer" | "training data" | "validation data" | "model"):
                self._announce(f"preparing: {event.what}")
            case Preparing():
                self._print(f"preparing: {event.what}")
            case Started():
                self._start(event)
            case Resumed():
                self._print(f"resumed after {event.update:,} of {event.updates:,} updates")
            case Validated():
                best = ", the best so far" if event.best else ""
                cut = f", {event.reached_limit:,} reached the length limit" if event.reached_limit else ""
                self._print(f"update {event.update:,}: validation {measured(event)}{cut}{best}")
            case Warned():
                self._print(f"warning: {event.message}", printed=warn)
            case Finished():
                self._finish(event)
            case Saved() | Interrupted():
                pass

    def next_steps(self, folder: Path) -> None:
        """Print what to do next with the trained model."""
        if not self._as_json and not self._already:
            from translume.checkpoint import read_config
            from translume.tasks import task_of

            config = read_config(folder)
            note(task_of(config).next_steps(folder, config))

    def _start(self, event: Started) -> None:
        if event.streamed:
            files = sum(file.split == "train" for file in event.files)
            self._print(f"training data: streamed from {files:,} {'file' if files == 1 else 'files'}")
        if event.training.read or not event.streamed:
            self._print(f"training data{', so far' if event.streamed else ''}: {event.training.summary()}")
        if event.validation.to_dict() != event.training.to_dict():
            self._print(f"validation data: {event.validation.summary()}")
        sizes = {event.source_vocabulary, event.target_vocabulary}
        vocabulary = " and ".join(f"{size:,}" for size in sorted(sizes))
        many = "thread" if event.threads == 1 else "threads"
        threads = f", {event.threads} {many}" if event.device == "cpu" else ""
        if event.processes > 1:
            threads += f"{' each' if threads else ''}, {event.processes} processes"
        less = event.trained_parameters != event.parameters
        trained = f" ({event.trained_parameters:,} trained, by low-rank adapters)" if less else ""
        self._print(
            f"model: {event.parameters:,} parameters{trained}, vocabulary {vocabulary}; "
            f"{event.device}, {event.precision}{threads}; {event.folder}"
        )
        if on_terminal() and not is_quiet():
            self._open(event)

    def _open(self, event: Started) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("update {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            console=console(),
            transient=True,
        )
        self._task = self._bar.add_task("", total=event.updates, completed=event.update, state="")
        self._bar.start()

    def _progress(self, event: Progress) -> None:
        if self._bar is not None and self._task is not None:
            state = (speed(event), losses(event), usage(event), f"{span(event.seconds_left)} left")
            self._bar.update(self._task, completed=event.update, state=" ".join(filter(None, state)))
            return
        pause = LOG_SECONDS[min(self._lines, len(LOG_SECONDS) - 1)]
        now = time.monotonic()
        if now - self._logged >= pause:
            self._logged, self._lines = now, self._lines + 1
            note(
                f"update {event.update:,}/{event.updates:,}: {losses(event)}, rate {event.learning_rate:.2g}, "
                f"{speed(event)}, {f'{used}, ' if (used := usage(event)) else ''}{span(event.seconds_left)} left"
            )

    def _finish(self, event: Finished) -> None:
        self.close()
        self._already = event.already
        if event.already:
            why, way = "", "raise training.updates"
            if event.reason == "patience":
                why, way = ": no improvement for a while (training.patience)", "raise training.patience, or set it to 0"
            note(f"{event.folder}: already finished, after {event.update:,} updates{why}; to continue, {way}")
            return
        quality = "" if event.nll is None else f"; validation {measured(event)}"
        why = "" if event.reason == "updates" else ": no improvement for a while (training.patience)"
        note(f"finished after {event.update:,} updates{why}; kept {event.kept}{quality}")

    def _announce(self, text: str) -> None:
        """Print `text` unless the next event comes within two seconds."""
        if is_quiet():  # which the thread of the timer does not know
            return
        self._notice = Timer(DELAY_SECONDS, self._print, (text,))
        self._notice.daemon = True
        self._notice.start()

    def _cancel_notice(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    def _print_json(self, event: Event) -> None:
        from translume.json_values import to_values

        if self.output_error is not None:
            return
        try:
            print_json({"event": type(event).__name__.lower(), **to_values(event)})
        except OutputError as error:
            abandon_output()
            self.output_error = error
            warn(f"warning: {error}; the training goes on and prints no more events")

    def _print(self, text: str, printed: Callable[[str], None] = note) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, soft_wrap=True)
        else:
            printed(text)


def speed(event: Progress) -> str:
    """Return the speed, such as "12,345 tokens/s", with that of each process if there are several."""
    each = f" ({event.tokens_per_second / event.processes:,.0f} per process)" if event.processes > 1 else ""
    return f"{event.tokens_per_second:,.0f} tokens/s{each}"


def usage(event: Progress) -> str:
    """Return the use of a GPU, such as "5.1 GiB (card 7.9), GPU 93 %"; empty on a CPU."""
    if event.memory_gib is None:
        return ""
    card = "" if event.card_memory_gib is None else f" (card {event.card_memory_gib:.1f})"
    busy = "" if event.utilization_percent is None else f", GPU {event.utilization_percent} %"
    return f"{event.memory_gib:.1f} GiB{card}{busy}"


def losses(event: Progress) -> str:
    """Return the losses, such as "loss 2.345, nll 1.234"; of mixtures of experts "balance 1.02, dropped 0.8 %" too."""
    nll = "" if event.nll is None else f", nll {event.nll:.3f}"
    if event.balance is None or event.dropped_share is None:
        return f"loss {event.loss:.3f}{nll}"
    return f"loss {event.loss:.3f}{nll}, balance {event.balance:.2f}, dropped {100 * event.dropped_share:.1f} %"


def measured(event: Validated | Finished) -> str:
    """Return validation results such as "nll 1.234, bleu 35.2"; "objective 1.234" for a head without nll."""
    return ", ".join(
        [f"{event.measure} {event.nll:.3f}", *(f"{name} {value:.2f}" for name, value in event.metrics.items())]
    )
