"""Curves of a training run, drawn from its history."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from translume.drawing.figure_files import new_figure, write_figure
from translume.errors import DataError

Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""For each picture, its curves: a name and points of (update, value)."""


def curves_of(history: Sequence[dict[str, Any]]) -> Curves:
    """What can be drawn: loss and nll in nats a token, each metric of the validation set, the learning rate."""
    pictures: Curves = defaultdict(lambda: defaultdict(list))
    for record in history:
        update = record.get("update")
        if not isinstance(update, int):
            continue
        if record.get("event") == "progress":
            _add(pictures["nats per token"]["training loss"], update, record.get("loss"))
            _add(pictures["nats per token"]["training nll"], update, record.get("nll"))
            _add(pictures["learning rate"]["learning rate"], update, record.get("learning_rate"))
        elif record.get("event") == "validated":
            name = f"validation {record.get('measure', 'nll')}"
            _add(pictures["nats per token"][name], update, record.get("nll"))
            for name, value in record.get("metrics", {}).items():
                _add(pictures[name][f"validation {name}"], update, value)
    kept = {title: {name: points for name, points in curves.items() if points} for title, curves in pictures.items()}
    return {title: curves for title, curves in kept.items() if curves}


def _add(points: list[tuple[int, float]], update: int, value: object) -> None:
    if isinstance(value, int | float):
        points.append((update, float(value)))


def draw(history: Sequence[dict[str, Any]], path: Path, *, title: str) -> None:
    """Write the curves side by side; the ending of `path` chooses the format. Raises DataError if that cannot be."""
    pictures = curves_of(history)
    if not pictures:
        raise DataError(f"{title}: history.jsonl holds no numbers to draw")
    figure = new_figure(path, width=5 * len(pictures), height=3.6)
    figure.suptitle(title)
    for axes, (label, curves) in zip(
        figure.subplots(1, len(pictures), squeeze=False)[0], pictures.items(), strict=True
    ):
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 30 else "")
        axes.set_xlabel("update")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        axes.legend()
    write_figure(figure, path)
