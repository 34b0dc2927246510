"""Propose a training that ends after some minutes on one core; docs/init.md explains the rule."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from translume.experiments import Choice, Value
from translume.experiments.table import rows_for, table

FLOPS, LAYER_SECONDS = 2e11, 0.007
"""Operations a second in products, and seconds of an update for each layer, of a core with AMX; both pessimistic."""
TIME_SHARE, OVERHEAD_SECONDS = 0.87, 15.0
"""Share of the time that is planned with, and the seconds before the first update and for the last validation."""
MIN_TOKENS, MAX_UPDATES = 1024, 8000
"""Tokens of the smallest batches, which are doubled while there are more than so many updates."""
MIN_UPDATES = 1000
"""Updates that a model should have; otherwise that for fewer pairs is proposed."""
SHORT, DROPOUT = 0.25, 0.1
"""Share of the tokens that the table's training reads, and the dropout of trainings that read less."""
CHECKPOINTS = 40
"""How many checkpoints are saved, of which the last five are averaged."""

_SHAPE = ("width", "feed_forward", "encoder_layers", "decoder_layers")


def update_seconds(shape: Mapping[str, Any], tokens: int) -> float:
    """Return the seconds of an update.  shape: `vocabulary`, `width` and so on.  tokens: of each side of the batch."""
    width, inner = shape["width"], 2 * shape["width"] * shape["feed_forward"]
    encoder, decoder = shape["encoder_layers"], shape["decoder_layers"]
    weights = encoder * (4 * width**2 + inner) + decoder * (8 * width**2 + inner) + width * shape["vocabulary"]
    seconds: float = 6 * weights * tokens / FLOPS + LAYER_SECONDS * (encoder + decoder)
    return seconds


def seconds_for_updates(minutes: float) -> float:
    """Return the seconds for updates in a training of some minutes."""
    return max(10.0, TIME_SHARE * 60 * minutes - OVERHEAD_SECONDS)


def pairs_for(pairs: int, minutes: float) -> int:
    """Return the number of pairs, or of those for which there is time to train the model of the table."""
    rows = [row for row in table()["rows"] if row["data"] == "text"]
    longest_update = seconds_for_updates(minutes) / MIN_UPDATES
    fits = [row["up_to"] for row in rows if update_seconds(row, MIN_TOKENS) <= longest_update]
    return int(min(pairs, max(fits, default=rows[0]["up_to"])))


def fit_to_minutes(choices: Sequence[Choice], pairs: int, minutes: float) -> tuple[Choice, ...]:
    """Return the settings proposed for pairs of texts, so that the training ends after some minutes.

    They stay as they are if there is time for all of their updates. pairs: the number of all pairs.
    """
    given: dict[str, Any] = {choice.path: choice.value for choice in choices}
    shape = {name: given[f"model.{name}"] for name in _SHAPE} | {"vocabulary": given["tokenizer.size"]}
    batch, seconds, tokens = given["training.max_tokens"], seconds_for_updates(minutes), MIN_TOKENS
    while tokens < batch and seconds / update_seconds(shape, tokens) > MAX_UPDATES:
        tokens *= 2
    tokens = min(tokens, batch)
    updates = max(100, int(seconds / update_seconds(shape, tokens)) // 100 * 100)
    row = next(rows_for(["text"], pairs))
    wanted = max(given["training.updates"] * batch, row["updates"] * row["max_tokens"])
    if updates * tokens >= wanted:
        return tuple(choices)
    values: dict[str, tuple[Value, str]] = {
        "training.updates": (
            updates,
            f"for {minutes:g} min of one core; `translume train … --dry-run` says how long here",
        ),
        "training.max_tokens": (tokens, "tokens in a batch; small ones, since many updates learn faster than few"),
        "training.schedule": ("cosine", "the rate falls to zero at the last update"),
        "training.warmup_updates": (min(given["training.warmup_updates"], updates // 80 * 10), ""),
        "training.validate_every": (updates, "at the end"),
        "training.save_every": (updates // CHECKPOINTS, ""),
    }
    if updates * tokens < SHORT * wanted:
        values["model.dropout"] = (min(DROPOUT, given["model.dropout"]), "little, since the data are read a few times")
    changed: list[Choice] = []
    for choice in choices:
        value, why = values.get(choice.path, (choice.value, choice.why))
        if choice.path != "training.patience":
            changed.append(replace(choice, value=value, why=why))
        if choice.path == "training.learning_rate" and "training.schedule" not in given:
            changed.append(Choice("training.schedule", *values["training.schedule"]))
    return tuple(changed)
