"""The results of a sweep: a table, as Markdown, JSON and HTML, and a picture."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from translume.atomic import write_file
from translume.checkpoint import read_history
from translume.evaluation import Comparison
from translume.evaluation.groups import aligned
from translume.evaluation.metrics import metric_from, of_texts
from translume.evaluation.scores import Counts, Metric
from translume.evaluation.significance import compare_counts
from translume.experiments.measuring import BEST, ROWS, Measures
from translume.experiments.processes import Run, Task
from translume.experiments.sweep import Row
from translume.inspection.pages import html_page
from translume.json_values import to_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_DISTRIBUTION, NO_SUPPORT = "†", "‡"
NOTHING = "–"
DIFFERENT = "*"
LEVEL = 0.05
"""The p-value below which a difference is marked."""
STYLES = ("-", "--", ":")
"""Line styles of rows 1 to 7, 8 to 14, …"""
QUALITY = (("nll", "nll", "{:.3f}"), ("ECE", "ece", "{:.4f}"))
COSTS = (
    ("parameters", "parameters", "{:,.0f}"),
    ("tokens/s", "tokens_per_second", "{:,.0f}"),
    ("peak MB", "peak_megabytes", "{:,.0f}"),
    ("head ms", "head_milliseconds", "{:.2f}"),
    ("step ms", "step_milliseconds", "{:.2f}"),
)
"""Columns of measures: title, name and form. Those of quality also show a deviation; metrics are between both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a sweep.

    title, command: of the page.  columns: names of the rows' values.
    comparisons: of each row with the first, by metric; empty where they did not translate the same sentences.
    """

    title: str
    command: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    comparisons: tuple[Mapping[str, Comparison], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as values for JSON."""
        rows = []
        for row, compared in zip(self.rows, self.comparisons, strict=True):
            content = {
                "name": row.name,
                "values": dict(zip(self.columns, row.values, strict=True)),
                "curve": curve(row),
            }
            spreads = {name: _spread(values) for name, values in numbers(row).items() if values}
            runs = [_run_values(task, run) for task, run in row.runs]
            rows.append({**content, "statistics": spreads, "against_first": compared, "runs": runs})
        values: dict[str, Any] = to_values({"title": self.title, "command": self.command, "rows": rows})
        return values

    @property
    def measured(self) -> list[Row]:
        """The rows that have measures."""
        return [row for row in self.rows if row.measured]

    @property
    def missing(self) -> list[str]:
        """Names of what has neither measures nor failed."""
        runs = [each for row in self.rows for each in row.runs]
        return [task.name for task, run in runs if not (run.failure or run.measured)]

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics of what was translated."""
        return list(dict.fromkeys(name for row in self.rows for each in row.measures for name, _, _ in each.scores))

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown that is readable as plain text."""
        table = "\n".join(aligned(self._head(), self._body(), left=len(self.columns)))
        return "\n\n".join([table, *self._notes()])

    def to_page(self) -> str:
        """Return the table and the curves as an HTML page."""
        curves = [{"name": row.name, "points": curve(row)} for row in self.rows]
        values = {"head": self._head(), "rows": self._body(), "left": len(self.columns), "notes": [*self._notes()]}
        return html_page("sweep", {**values, "command": self.command, "curves": curves}, title=self.title)

    @property
    def _measures(self) -> list[tuple[str, str, str]]:
        metrics = [(name, name, "{:.2f}") for name in self.metrics]
        return [*COSTS[:3], QUALITY[0], *metrics, QUALITY[1], *COSTS[3:]]

    def _head(self) -> list[str]:
        return [*self.columns, *(title for title, _, _ in self._measures)]

    def _body(self) -> list[list[str]]:
        return [self._cells(row, compared) for row, compared in zip(self.rows, self.comparisons, strict=True)]

    def _cells(self, row: Row, compared: Mapping[str, Comparison]) -> list[str]:
        cells, known = [*row.values[:-1], row.values[-1] + marks(row)], numbers(row)
        signs = {name: DIFFERENT for name, each in compared.items() if each.p_value < LEVEL} | {"nll": marks(row)}
        for column in self._measures:
            _, name, form = column
            each = _spread(known.get(name, ()))
            deviation = f" ± {form.format(each['sd'])}" if len(row.measured) > 1 and column not in COSTS else ""
            cells.append(f"{form.format(each['mean'])}{deviation}{signs.get(name, '')}" if known.get(name) else NOTHING)
        return cells

    def _notes(self) -> Iterator[str]:
        """Yield notes that explain the table, one paragraph each."""
        if self.measured:
            yield self._how(self.measured[0].measures[0])
        yield from self._differences()
        if any(NO_DISTRIBUTION in marks(row) for row in self.measured):
            yield (
                f"{NO_DISTRIBUTION} probabilities do not sum to one: the nll cannot be compared with other heads', "
                "the ECE only with care."
            )
        narrow = [(row.name, each) for row in self.measured for each in row.measures if not each.full_support]
        if narrow:
            left_out = ", ".join(f"{name} {each.impossible:,} of {each.tokens:,}" for name, each in narrow)
            yield (
                f"{NO_SUPPORT} some tokens have zero probability: the nll is the mean over the other reference tokens, "
                f"and looks better the more are left out ({left_out})."
            )
        yield from (f"{task.name} failed: {run.failure}" for row in self.rows for task, run in row.runs if run.failure)
        if self.missing:
            yield f"Missing: {'; '.join(self.missing)}."

    def _how(self, first: Measures) -> str:
        configs = [task.config for row in self.rows for task, _ in row.runs]
        updates = sorted({config.training.updates for config in configs})
        seeds = sorted({config.training.seed for config in configs})
        decoding = configs[0].decoding
        search = "greedy search" if decoding.strategy == "greedy" else f"beam {decoding.beam}"
        many = "thread" if first.threads == 1 else "threads"
        where = f"{first.threads} {many}" if first.device == "cpu" else "memory is the device's"
        several = f"seeds {seeds[0]} to {seeds[-1]} (mean ± standard deviation)"
        text = f"{' or '.join(f'{each:,}' for each in updates)} updates, "
        text += f"{several if len(seeds) > 1 else f'seed {seeds[0]}'}; {first.device}, {where}."
        if not first.sentences:
            return text
        signatures = "; ".join(f"{name} {signature}" for name, _, signature in first.scores)
        return (
            f"{text} nll in nats per token and ECE: {first.tokens:,} validation tokens; "
            f"{', '.join(self.metrics)}: {first.sentences:,} sentences, {search} ({signatures}). "
            f"ms: a decoding step of {ROWS} rows, for their {BEST} best tokens."
        )

    def _differences(self) -> Iterator[str]:
        for metric in self.metrics:
            differences = [
                f"{row.name} {comparison.second.value - comparison.first.value:+.2f} "
                f"[{comparison.difference.low:+.2f}, {comparison.difference.high:+.2f}], p = {comparison.p_value:.3f}"
                for row, compared in zip(self.rows, self.comparisons, strict=True)
                if (comparison := compared.get(metric))
            ]
            if differences:
                yield f"{metric} against the first row, {DIFFERENT} if p < {LEVEL}: {'; '.join(differences)}."


def make_table(rows: Sequence[Row], *, title: str, command: str, columns: Sequence[str]) -> Table:
    """Return the table of rows, compared with the first one."""
    compared = tuple(compared_with_first(rows))
    return Table(title=title, command=command, columns=tuple(columns), rows=tuple(rows), comparisons=compared)


def compared_with_first(rows: Sequence[Row]) -> Iterator[dict[str, Comparison]]:
    """Yield the comparison of each row with the first by each metric, as the settings of the first row define it.

    Counts of a sentence are summed over the seeds, so that a resample draws a sentence with its translations by all
    models of a row. The comparison is empty for rows that did not all translate the same sentences.
    """
    first_measured = rows[0].measured
    if not first_measured or not first_measured[0].translations:
        yield from ({} for _ in rows)
        return
    texts = sources, references = first_measured[0].sources, first_measured[0].references
    settings = of_texts(rows[0].runs[0][0].config.scoring, references)
    metrics = {name: metric_from(name, settings) for name in settings.names}

    def count(row: Row, metric: Metric) -> Counts:
        counts = [metric.count(each.translations, [references], sources) for each in row.measured]
        return sum(counts[1:], start=counts[0])

    first = {name: count(rows[0], metric) for name, metric in metrics.items()}
    for row in rows:
        same = all((each.sources, each.references) == texts for each in row.measured)
        compared = metrics if same and row.measured and row is not rows[0] else {}
        yield {name: compare_counts(metric, [first[name], count(row, metric)]) for name, metric in compared.items()}


def _run_values(task: Task, run: Run) -> dict[str, Any]:
    made = {"seed": task.config.training.seed, "folder": str(task.folder), "peak_bytes": run.peak_bytes}
    return {**made, "failure": run.failure, "measures": run.measured and run.measured.measures}


def numbers(row: Row) -> dict[str, list[float]]:
    """Return the measures of a row and its metrics, each with its values by seed; those that are unknown are left out.

    peak_megabytes: 10⁶ bytes.
    """
    by_name = {name: [getattr(each, name, None) for each in row.measures] for _, name, _ in (*QUALITY, *COSTS)}
    by_name["peak_megabytes"] = [run.peak_bytes and run.peak_bytes / 1e6 for _, run in row.runs if run.measured]
    for name in dict.fromkeys(name for each in row.measures for name, _, _ in each.scores):
        by_name[name] = [value for each in row.measures for metric, value, _ in each.scores if metric == name]
    return {name: [each for each in values if each is not None] for name, values in by_name.items()}


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the standard deviation of a sample: 0 for one value, and both for none."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values) if values else 0.0, "sd": deviation}


def curve(row: Row) -> list[tuple[int, float, float]]:
    """Return (update, mean, standard deviation) of the validation nll over the seeds, at updates that all have.

    Empty if a head has no full distribution, since its nll is not comparable.
    """
    if marks(row) or not row.measured:
        return []
    points = [
        {
            record["update"]: record["nll"]
            for record in read_history(task.folder)
            if record.get("event") == "validated" and record.get("measure", "nll") == "nll"
        }
        for task, run in row.runs
        if run.measured
    ]
    updates = sorted(set.intersection(*(set(each) for each in points)))
    spreads = [(update, _spread([each[update] for each in points])) for update in updates]
    return [(update, each["mean"], each["sd"]) for update, each in spreads]


def marks(row: Row) -> str:
    """Return the marks of the notes that apply to the head of a row."""
    mark = "" if all(each.normalised for each in row.measures) else NO_DISTRIBUTION
    return mark + ("" if all(each.full_support for each in row.measures) else NO_SUPPORT)


def save_table(table: Table, folder: Path) -> None:
    """Write the table as table.md, table.json, table.html and table.png."""
    text = f"# {table.title}\n\n    {table.command}\n\n{table.to_markdown()}\n"
    write_file(folder / "table.md", text.encode())
    write_file(folder / "table.json", f"{json.dumps(table.to_dict(), indent=1, ensure_ascii=False)}\n".encode())
    write_file(folder / "table.html", table.to_page().encode())
    draw_table(table, folder / "table.png")


def draw_table(table: Table, path: Path) -> None:
    """Draw validation nll against updates, and bars of quality and speed, with standard deviations over the seeds."""
    from translume.inspection.figures import new_figure, write_figure

    rows = table.measured
    figure = new_figure(width=13, height=4.2 + 0.24 * len(rows))
    figure.suptitle(table.title)
    curves, quality, speed, step = figure.subplots(1, 4, width_ratios=(2.2, 1, 1, 1.2))
    _draw_nll(curves, rows)
    metric = (table.metrics or ["nll"])[0]
    _bars(quality, rows, metric, metric, "{:.2f}")
    quality.set_yticks(range(len(rows)), [row.name + marks(row) for row in rows])
    _bars(speed, rows, "tokens_per_second", "target tokens/s", "{:,.0f}")
    _bars(step, rows, "step_milliseconds", "ms per decoding step", "{:.2f}")
    write_figure(figure, path)


def _draw_nll(axes: "Axes", rows: Sequence[Row]) -> None:
    from translume.inspection.figures import COLOURS

    curves = [curve(row) for row in rows]
    for place, (row, points) in enumerate(zip(rows, curves, strict=True)):
        if points:
            updates, means, deviations = (np.array(each) for each in zip(*points, strict=True))
            style, colour = STYLES[place // len(COLOURS) % len(STYLES)], COLOURS[place % len(COLOURS)]
            axes.plot(updates, means, label=row.name, color=colour, linestyle=style, marker=".")
            axes.fill_between(updates, means - deviations, means + deviations, color=colour, alpha=0.2)
    if left_out := [row.name for row, points in zip(rows, curves, strict=True) if not points]:
        axes.set_title(f"without {', '.join(left_out)}: not comparable", fontsize="small")
    axes.set_xlabel("update")
    axes.set_ylabel("validation nll, nats per token")
    axes.grid(alpha=0.3)
    if any(curves):
        axes.legend(fontsize="small")


def _bars(axes: "Axes", rows: Sequence[Row], name: str, label: str, form: str) -> None:
    """Draw one bar per row, the first on top, each with its number."""
    from translume.inspection.figures import COLOURS

    spreads = [_spread(numbers(row).get(name, ())) for row in rows]
    values, deviations = ([each[name] for each in spreads] for name in ("mean", "sd"))
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(rows))]
    bars = axes.barh(range(len(rows)), values, color=colours, height=0.7, xerr=deviations)
    axes.bar_label(bars, [form.format(value) for value in values], padding=3, fontsize="small")
    axes.set_yticks(range(len(rows)), [""] * len(rows))
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel(label)
    axes.margins(x=0.35)
    axes.spines[["top", "right"]].set_visible(False)
