"""Evaluations of a model that shall be remembered: a line of its history, and the scores in its card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translume.checkpoint.card import rewrite_scores
from translume.checkpoint.history import append_history, read_history

EVALUATED, CALIBRATED = "evaluated", "calibrated"


def record_evaluation(folder: Path, record: Mapping[str, Any]) -> None:
    """Add an evaluation to the history of a model, and to its card all scores of its present weights.

    record: the files' names as "source" and "reference", and "scores" as `Score.to_dict` gives them.
    """
    append_history(folder, {"event": EVALUATED, **record})
    rewrite_scores(folder, lines_of(read_history(folder)))


def lines_of(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each score measured since the last training; of one measured twice, the last. No folders are named."""
    lines: dict[tuple[str, str], str] = {}
    for record in history:
        if record.get("event") == EVALUATED:
            files = dict.fromkeys(Path(str(record.get(side, ""))).name for side in ("source", "reference"))
            on = ", ".join(files)
            for score in record.get("scores", []):
                name = f"{score['title']}|{score['signature']}"
                lines[on, name] = f"{on}: {name} = {score['value']:.2f}"
        elif record.get("event") != CALIBRATED:
            lines = {}  # of weights that were trained on since
    return list(lines.values())
