"""Compare output heads: train the same model with each of them on the same data, measure it, and print a table."""

import hashlib
import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from translume.atomic import make_folder, write_file
from translume.checkpoint import FolderLock, Manifest, read_history
from translume.checksums import sealed, unsealed
from translume.config import Config, HeadKind
from translume.config.base import RAISE_RAW
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError, nearest
from translume.experiments.measuring import BEST, ROWS, Measures, Outcome, Task, run_in_worker
from translume.json_values import JsonValue, to_json, to_values
from translume.training.events import Event
from translume.training.resume import WEIGHTS, ModelDescription, Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = "measured.json"
"""File with the measures of all kinds compared in the folder so far."""
POINTS = 10
"""Minimum number of validations, and of progress lines, of a run."""
NO_DISTRIBUTION, NO_SUPPORT = "†", "‡"
NOTHING = "–"
STYLES = ("-", "--", ":")
"""Line styles of heads 1 to 7, 8 to 14, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparingHead:
    """A head is trained and measured next: the `number`-th of `count`."""

    kind: str
    number: int
    count: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(JsonValue):
    """The result of one head: measures, or the reason of a failure.

    settings: of the head.  peak_bytes: peak memory of its training, of the process or, on CUDA, of the device.
    key: digest of the measured weights and of the settings of model and measurement.
    """

    kind: str
    settings: Mapping[str, Any]
    measures: Measures | None = None
    peak_bytes: int | None = None
    failure: str = ""
    key: str = ""


def head_kinds() -> dict[str, type[HeadKind]]:
    """Return the settings class of every head over tokens, by its kind."""
    return {kind: member for kind, member in HeadKind.kinds().items() if member.predicts == "tokens"}


def chosen_kinds(words: str) -> tuple[str, ...]:
    """Return the kinds in a text such as "softmax,mixture", or all for "all"; SettingsError for an unknown one."""
    known = head_kinds()
    if words.strip() == "all":
        return tuple(known)
    names = tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for name in names:
        if name not in known:
            raise SettingsError(f"--kinds: found '{name}'{nearest(name, known)}")
    if not names:
        raise SettingsError(f"--kinds: found none; known: {', '.join(known)}")
    return names


def config_with(config: Config, kind: str) -> Config:
    """Return the settings with another head, which keeps the settings that both heads have.

    `tie` becomes "none" if the kind cannot share weights in that way. Validation and logging become frequent enough for
    a curve.
    """
    member, present = head_kinds()[kind], config.model.head
    head = present if member is type(present) else member.model_validate(_shared(present, member))
    settings = config.training
    every = max(1, settings.updates // POINTS)
    often = {"log_every": min(settings.log_every, every)}
    if not settings.patience:  # which counts validations
        often["validate_every"] = min(settings.validate_every, every)
    return config.model_copy(
        update={"model": config.model.model_copy(update={"head": head}), "training": settings.model_copy(update=often)}
    )


def _shared(present: HeadKind, member: type[HeadKind]) -> dict[str, Any]:
    """Return the settings of a head that are also valid for another kind."""
    values: dict[str, Any] = {}
    for name in type(present).model_fields.keys() & member.model_fields.keys() - {"kind"}:
        value = getattr(present, name)
        try:
            member.model_validate({name: value}, context=RAISE_RAW)
            values[name] = value
        except ValidationError:
            if name == "tie":
                values[name] = "none"
    return values


def compare_heads(
    config: Config,
    folder: Path,
    kinds: Sequence[str],
    *,
    sentences: int = 500,
    device: str = "auto",
    threads: int | None = None,
) -> Iterator[ComparingHead | Event | Row]:
    """Train and measure each kind of head in its folder under `folder`, in a process of its own.

    Yield for each kind ComparingHead, the events of its training, and a Row, after writing it to measured.json. A
    repeated call resumes an interrupted one and skips kinds that are already measured. A kind that fails has a Row with
    the reason. After Interrupted nothing follows.
    sentences: number of validation sentences to translate, evenly spread; 0 for all.
    """
    make_folder(folder)
    rows = {row.kind: row for row in read_rows(folder)}
    for number, kind in enumerate(kinds, start=1):
        home = folder / kind
        task = Task(config=config_with(config, kind), folder=home, sentences=sentences, device=device, threads=threads)
        row = rows.get(kind)
        if row is None or row.measures is None or row.key != _key(task):
            yield ComparingHead(kind=kind, number=number, count=len(kinds), folder=home)
            row = yield from _train_and_measure(task, kind, row, [folder / other for other in (*rows, *kinds)])
            rows[kind] = row
            _write(folder, rows)
            if row.measures is None and not row.failure:
                return
        yield row


def _train_and_measure(
    task: Task, kind: str, before: Row | None, others: Sequence[Path]
) -> Generator[Event, None, Row]:
    """Train and measure one kind; a row with neither measures nor a reason was interrupted."""
    begun = before is not None and (task.folder / "manifest.json").exists()
    peak = before.peak_bytes if before is not None and begun else None
    try:
        _reuse_vocabularies(others, task)
        outcome = yield from run_in_worker(task, task.folder.with_suffix(".log"))
    except TranslumeError as error:
        outcome = Outcome(failure=str(error))
    if outcome.peak_bytes is not None:
        peak = max(peak or 0, outcome.peak_bytes)
    return Row(
        kind=kind,
        settings=task.config.model.head.model_dump(mode="json"),
        measures=outcome.measures,
        peak_bytes=peak,
        failure="" if outcome.measures or outcome.interrupted else outcome.failure or "no measures were returned",
        key=_key(task) if outcome.measures else "",
    )


def _reuse_vocabularies(others: Sequence[Path], task: Task) -> None:
    """Copy vocabularies and tokenized corpus of another run with the same settings into a new one."""
    config, folder = task.config, task.folder
    with FolderLock(folder):
        store = Store(folder)
        if store.model() is not None:
            return
        for other in others:
            model = _stored(other) if other != folder else None
            if model is None or (model.config.tokenizer, model.config.data) != (config.tokenizer, config.data):
                continue
            store.begin(ModelDescription(config=config, source=model.source, target=model.target))
            with suppress(OSError, shutil.Error):  # without a copy the corpus is built again
                shutil.copytree(other / "cache", folder / "cache", copy_function=os.link)
            return


def _stored(folder: Path) -> ModelDescription | None:
    try:
        return Store(folder).model()
    except ModelFolderError:  # reported when this kind is trained
        return None


def _key(task: Task) -> str:
    """Return a digest of the weights and of the settings of model and measurement; empty if there are no weights."""
    try:
        weights = Manifest.read(task.folder).files.get(WEIGHTS)
    except ModelFolderError:
        return ""
    if weights is None:
        return ""
    measured = (weights.sha256, task.config.model_dump(mode="json"), task.sentences, task.device, task.threads)
    return hashlib.sha256(to_json(measured).encode()).hexdigest()


def read_rows(folder: Path) -> list[Row]:
    """Return the rows in measured.json; none if it is missing, damaged or unreadable."""
    try:
        values, _ = unsealed((folder / MEASURED).read_text(encoding="utf-8"))
        return [Row.from_dict(row) for row in values["rows"]]
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return []


def _write(folder: Path, rows: Mapping[str, Row]) -> None:
    write_file(folder / MEASURED, sealed({"rows": to_values([*rows.values()])}).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows and their common settings.  name: of the settings file.  command: the command line that made them."""

    config: Config
    name: str
    command: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as values for JSON."""
        training, decoding = self.config.training, self.config.decoding.model_dump(mode="json")
        named = {"config": self.name, "command": self.command, "updates": training.updates, "seed": training.seed}
        return {**named, "decoding": decoding, "rows": to_values(self.rows)}

    @property
    def measured(self) -> list[tuple[Row, Measures]]:
        """The rows that have measures."""
        return [(row, row.measures) for row in self.rows if row.measures is not None]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of what was translated."""
        return list(dict.fromkeys(name for _, found in self.measured for name, _, _ in found.scores))

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown that is readable as plain text."""
        table = "\n".join(aligned(self._head(), [self._cells(row) for row in self.rows]))
        return "\n\n".join([table, *self._notes()])

    def to_page(self) -> str:
        """Return the table as a page with a title and the command that made it."""
        return f"# Output heads on {self.name}\n\n    {self.command}\n\n{self.to_markdown()}\n"

    def _head(self) -> list[str]:
        names = ["head", "parameters", "tokens/s", "peak MB", "nll", *self.metrics, "ECE"]
        return [*names, "head ms", "step ms"]

    def _cells(self, row: Row) -> list[str]:
        found = row.measures
        empty = [NOTHING] * (7 + len(self.metrics))
        if found is None:
            return [row.kind, *empty]
        values = {name: value for name, value, _ in found.scores}
        return [
            row.kind + marks(found),
            f"{found.parameters:,}",
            NOTHING if found.tokens_per_second is None else f"{found.tokens_per_second:,.0f}",
            NOTHING if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
            NOTHING if found.nll is None else f"{found.nll:.3f}{marks(found)}",
            *(f"{values[name]:.2f}" if name in values else NOTHING for name in self.metrics),
            f"{found.ece:.4f}",
            f"{found.head_milliseconds:.2f}",
            f"{found.step_milliseconds:.2f}",
        ]

    def _notes(self) -> Iterator[str]:
        """Yield notes that explain the table, one paragraph each."""
        measured = [found for _, found in self.measured]
        if measured:
            yield self._how(measured[0])
        if not all(found.normalised for found in measured):
            yield (
                f"{NO_DISTRIBUTION} probabilities do not sum to one: the nll cannot be compared with other heads', "
                "the ECE only with care."
            )
        narrow = [(row.kind, found) for row, found in self.measured if not found.full_support]
        if narrow:
            left_out = ", ".join(f"{kind} {found.impossible:,} of {found.tokens:,}" for kind, found in narrow)
            yield (
                f"{NO_SUPPORT} some tokens have zero probability: the nll is the mean over the other reference tokens, "
                f"and looks better the more are left out ({left_out})."
            )
        for row in self.rows:
            if row.failure:
                yield f"{row.kind} failed: {row.failure}"

    def _how(self, first: Measures) -> str:
        decoding, training = self.config.decoding, self.config.training
        search = "greedy search" if decoding.strategy == "greedy" else f"beam {decoding.beam}"
        signatures = "; ".join(f"{name} {signature}" for name, _, signature in first.scores)
        many = "thread" if first.threads == 1 else "threads"
        where = f"{first.threads} {many}" if first.device == "cpu" else "memory is the device's"
        measured_on = f"nll in nats per token and ECE: {first.tokens:,} validation tokens"
        translated = f"{', '.join(self.metrics)}: {first.sentences:,} sentences, {search} ({signatures})"
        return (
            f"{training.updates:,} updates, seed {training.seed}; {first.device}, {where}. {measured_on}; "
            f"{translated}. ms: a decoding step of {ROWS} rows, for their {BEST} best tokens."
        )


def marks(found: Measures) -> str:
    """Return the marks of the notes that apply to a head."""
    return ("" if found.normalised else NO_DISTRIBUTION) + ("" if found.full_support else NO_SUPPORT)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with padded columns: the first left-aligned, the others right-aligned."""
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return f"| {' | '.join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])} |"

    rule = "|".join([f":{'-' * (widths[0] + 1)}", *(f"{'-' * (width + 1)}:" for width in widths[1:])])
    return [line(head), f"|{rule}|", *map(line, rows)]


def draw_heads(comparison: Comparison, folder: Path, path: Path) -> None:
    """Draw validation nll against updates, and bars of quality and speed; `folder` holds the models.

    Heads without a full distribution get no curve, because their nll is not comparable.
    """
    from translume.inspection.figures import check_image_format, new_figure, write_figure

    measured = comparison.measured
    names = [row.kind + marks(found) for row, found in measured]
    check_image_format(path)
    figure = new_figure(width=13, height=4.2 + 0.24 * len(measured))
    figure.suptitle(f"Output heads on {comparison.name}, {comparison.config.training.updates:,} updates")
    curves, quality, speed, step = figure.subplots(1, 4, width_ratios=(2.2, 1, 1, 1.2))
    _draw_nll(curves, comparison, folder)
    metric = comparison.metrics[0]
    scores = [next((value for name, value, _ in found.scores if name == metric), 0.0) for _, found in measured]
    _bars(quality, names, scores, metric, "{:.2f}")
    _bars(speed, names, [found.tokens_per_second or 0.0 for _, found in measured], "target tokens/s", "{:,.0f}")
    heads = [found.head_milliseconds for _, found in measured]
    _bars(step, names, [found.step_milliseconds for _, found in measured], "ms per decoding step", "{:.2f}")
    step.barh(range(len(names)), heads, color="black", alpha=0.45, height=0.35)
    step.set_title("dark: the head's part", fontsize="small")
    for axes in (speed, step):
        axes.set_yticklabels([])
    write_figure(figure, path)


def _draw_nll(axes: "Axes", comparison: Comparison, folder: Path) -> None:
    from translume.inspection.figures import COLOURS, curves_of

    left_out = []
    for place, (row, found) in enumerate(comparison.measured):
        if not (found.normalised and found.full_support):
            left_out.append(row.kind)
            continue
        points = curves_of(read_history(folder / row.kind)).get("nats per token", {}).get("validation nll", [])
        axes.plot(
            *zip(*points, strict=True),
            label=row.kind,
            color=_colour(place),
            linestyle=STYLES[place // len(COLOURS) % len(STYLES)],
            marker="." if len(points) < 30 else "",
        )
    if left_out:
        axes.set_title(f"without {', '.join(left_out)}: not comparable", fontsize="small")
    axes.set_xlabel("update")
    axes.set_ylabel("validation nll, nats per token")
    axes.grid(alpha=0.3)
    if len(left_out) < len(comparison.measured):
        axes.legend(fontsize="small")


def _bars(axes: "Axes", names: Sequence[str], values: Sequence[float], label: str, form: str) -> None:
    """Draw one bar per head, the first on top, each with its number."""
    places = range(len(names))
    bars = axes.barh(places, values, color=[_colour(place) for place in places], height=0.7)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize="small")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel(label)
    axes.margins(x=0.35)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(place: int) -> str:
    """Return the colour of the head at a position in the table."""
    from translume.inspection.figures import COLOURS

    return COLOURS[place % len(COLOURS)]
