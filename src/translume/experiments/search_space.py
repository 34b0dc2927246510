"""The search space of `translume tune`: what the user names, or what a model's settings propose."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from translume.config import Config
from translume.errors import SettingsError
from translume.experiments.combinations import KIND, parse_varied
from translume.tasks import task_of

if TYPE_CHECKING:
    from optuna.trial import Trial

NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(?::(\w*))?")
MEASURED = ("training.metric", "training.validation_sentences", "evaluation", "data.valid")
"""Beginnings of the settings that say how trials are measured."""
LEARNED = ("bpe", "unigram", "wordpiece")
"""Kinds of tokenizers whose size is a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A setting that the search varies: the numbers from `low` to `high`, or one of `values`, as text.

    log: numbers are drawn evenly on a logarithmic scale.  whole: they are integers.
    """

    path: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        if self.values:
            return f"{self.path}={','.join(self.values)}"
        return f"{self.path}={self.low:g}..{self.high:g}{':log' * self.log}"

    def value_in(self, config: Config) -> str | float | None:
        """Return the value in some settings; None if the space does not have it."""
        value = config.by_path().get(self.path)
        if self.values:
            return next((text for text in self.values if _parsed(text) == value), None)
        inside = isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high
        return value if inside else None

    def suggest(self, trial: "Trial") -> str:
        """Return the value that the search tries next, as text; a number with four digits."""
        if self.values:
            return str(trial.suggest_categorical(self.path, self.values))
        if self.whole:
            return str(trial.suggest_int(self.path, int(self.low), int(self.high), log=self.log))
        return f"{trial.suggest_float(self.path, self.low, self.high, log=self.log):.4g}"


def _parsed(text: str) -> Any:
    """Return the value of a text as JSON has it; a text that is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_space(assignments: Sequence[str]) -> tuple[Dimension, ...]:
    """Return the dimensions in texts such as "model.dropout=0.1..0.4" and "model.norm=pre,post".

    Raises SettingsError for a range that is empty or has an unknown scale, and as `parse_varied`.
    """
    return tuple(_dimension(path, values) for path, values in parse_varied(assignments).items())


def _dimension(path: str, values: tuple[str, ...]) -> Dimension:
    if len(values) > 1 or ".." not in values[0]:
        return Dimension(path=path, values=values)
    place, match = f"--vary {path}={values[0]}", RANGE.fullmatch(values[0])
    if match is None or match[3] not in (None, "log"):
        raise SettingsError(
            f"{place}: expected LOW..HIGH or LOW..HIGH:log, such as training.learning_rate=1e-4..3e-3:log"
        )
    low, high = float(match[1]), float(match[2])
    if low >= high:
        raise SettingsError(f"{place}: found {match[1]} first, expected a number below {match[2]}")
    if match[3] and low <= 0:
        raise SettingsError(f"{place}: found {match[1]}, expected a number above 0 with :log")
    whole = all(re.fullmatch(r"[-+]?\d+", number) for number in match.groups()[:2])
    return Dimension(path=path, low=low, high=high, log=bool(match[3]), whole=whole)


def propose_space(config: Config) -> Iterator[Dimension]:
    """Yield dimensions around the values of some settings; docs/tune.md has the table."""
    training, model, tokens = config.training, config.model, config.tokenizer
    rate, warmup, batch = training.learning_rate, training.warmup_updates, training.max_tokens
    yield Dimension(path="training.learning_rate", low=rate / 4, high=2 * rate, log=True)
    if warmup >= 8:
        yield Dimension(path="training.warmup_updates", low=warmup // 8, high=warmup, log=True, whole=True)
    if isinstance(batch, int) and batch >= 1024:
        yield _choices("training.max_tokens", [batch // 4, batch // 2, batch])
    if training.label_smoothing:
        yield Dimension(path="training.label_smoothing", low=0.0, high=max(0.2, training.label_smoothing))
    low, high = max(0.0, model.dropout - 0.2), min(0.9, model.dropout + 0.1)
    yield Dimension(path="model.dropout", low=round(low, 4), high=round(high, 4))
    # Rotary positions need even widths of heads.
    width, heads = model.width, model.attention_heads
    widths = {each for each in (width // 2, 3 * width // 2, 2 * width) if each % (2 * heads) == 0}
    yield _choices("model.width", sorted({width, *widths}))
    task = task_of(config)
    sides = (
        ("encoder_layers", model.encoder_layers if task.reads == "pairs" else 0),
        ("decoder_layers", model.decoder_layers if task.predicts == "tokens" else 0),
    )
    for name, layers in sides:
        if layers:
            yield Dimension(path=f"model.{name}", low=max(1, layers - 2), high=layers + 1, whole=True)
    if tokens.kind in LEARNED and not tokens.path and tokens.size >= 1000:
        yield _choices("tokenizer.size", [tokens.size // 2, tokens.size, 2 * tokens.size])


def _choices(path: str, values: Sequence[int]) -> Dimension:
    return Dimension(path=path, values=tuple(map(str, values)))


def describe(chosen: Mapping[str, str]) -> str:
    """Return values by path in one line."""
    return ", ".join(f"{path}={value}" for path, value in chosen.items())


def check_space(space: Sequence[Dimension], config: Config) -> None:
    """Raise SettingsError for a dimension that is no setting, or that changes how trials are measured."""
    for dimension in space:
        if dimension.path.startswith(MEASURED) or (dimension.path == KIND and config.training.metric == "nll"):
            raise SettingsError(f"--vary {dimension.path}: cannot be varied: trials would not be measured alike")
        try:
            config.change(f"{dimension.path}={dimension.values[0] if dimension.values else f'{dimension.low:g}'}")
        except SettingsError as error:
            if "no such setting" in str(error):
                raise SettingsError(f"--vary {dimension}: {str(error).removeprefix('--set: ')}") from None
