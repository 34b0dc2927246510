"""The settings of a sweep: files, or every combination of varied values, each with several seeds."""

import hashlib
import math
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from translume.config import Config, HeadKind
from translume.config.base import RAISE_RAW, literal
from translume.errors import SettingsError

KIND = "model.head.kind"
SEED = "training.seed"
POINTS = 10
"""Minimum number of validations, and of progress lines, of a run."""
MAX_RUNS = 1000
MAX_NAME = 100
"""Maximum number of trainings of a sweep, and of letters in the name of a folder."""

Varied = Mapping[str, Sequence[str]]
"""The values of each varied setting, as text, by its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One row of a sweep.

    name: of its folders, and in messages.  values: what differs from other rows, as text.
    configs: the settings for each seed.
    """

    name: str
    values: tuple[str, ...]
    configs: tuple[Config, ...]


def parse_varied(assignments: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values in texts such as "model.norm=pre,post"; a value is TOML or a word.

    Raises SettingsError for a text without values, and for settings that are varied twice.
    """
    varied: dict[str, tuple[str, ...]] = {}
    for assignment in assignments:
        path, _, text = assignment.partition("=")
        path = path.strip()
        values = split_values(text)
        if not all([*path.split("."), *values]):
            raise SettingsError(f"--vary {assignment}: expected PATH=VALUE,VALUE, such as model.norm=pre,post")
        if path == SEED:
            raise SettingsError(f"--vary {SEED}: cannot be varied; --seeds N trains with several seeds")
        for earlier in varied:
            if f"{path}.".startswith(f"{earlier}.") or f"{earlier}.".startswith(f"{path}."):
                reason = "found it twice" if path == earlier else f"found {earlier} too, which it overlaps"
                raise SettingsError(f"--vary {path}: {reason}; expected each setting once, with all its values")
        varied[path] = tuple(dict.fromkeys(values))
    return varied


def split_values(text: str) -> list[str]:
    """Return the parts of a text between commas, without those in strings, lists and tables of TOML."""
    values, part = [], ""
    for piece in text.split(","):
        part += piece
        try:
            tomllib.loads(f"value = {part}")
        except tomllib.TOMLDecodeError:
            if part.strip()[:1] in ("[", "{", '"', "'"):  # it may end after the next comma
                part += ","
                continue
        values.append(part.strip())
        part = ""
    return [*values, part.strip()] if part else values


def combinations(
    files: Sequence[Path], varied: Varied, *, seeds: int = 1, overrides: Sequence[str] = ()
) -> list[Combination]:
    """Return the combinations of files and values, in the order of the files and of the values.

    seeds: number of seeds, from that of the file on.  overrides: assignments `path=value` for all.
    Another kind of head keeps the settings that both kinds have; `tie` becomes "none" if the kind cannot share weights
    in that way. Validation and logging become frequent enough for a curve.
    Raises SettingsError, which names the combination, for a value that is not allowed.
    """
    runs = len(files) * math.prod(map(len, varied.values())) * seeds
    if runs > MAX_RUNS:
        raise SettingsError(f"--vary: found {runs:,} trainings, expected at most {MAX_RUNS:,}")
    if len({file.stem for file in files}) < len(files):
        raise SettingsError(f"{files[0]}: found two files of this name, expected different names")
    rows = []
    for file in files:
        base = Config.read(file, overrides)
        for values in product(*varied.values()):
            chosen = dict(zip(varied, values, strict=True))
            named = [f"{path}={value}" for path, value in chosen.items()]
            try:
                config = _often(Config.read(file, [*overrides, *assignments(base, chosen)]), varied)
            except SettingsError as error:
                raise SettingsError(f"{', '.join(named)}: {error}" if named else str(error)) from None
            label = [f"file={file.stem}"] if len(files) > 1 or not varied else []
            rows.append(
                Combination(
                    name=folder_name(",".join([*label, *named])),
                    values=(*([file.name] if label else []), *values),
                    configs=tuple(with_seed(config, number) for number in range(seeds)),
                )
            )
    return rows


def assignments(base: Config, chosen: Mapping[str, str]) -> list[str]:
    """Return the overrides `path=value` of the values by path; the kind of head replaces the whole table of `base`."""
    head = [_with_kind(base, chosen[KIND])] if KIND in chosen else []
    return head + [f"{path}={value}" for path, value in chosen.items() if path != KIND]


def with_seed(config: Config, number: int) -> Config:
    """Return the settings with the `number`-th seed after their own."""
    return config.with_values("training", {"seed": config.training.seed + number})


def folder_name(text: str) -> str:
    """Return a text as the name of a folder, with a digest if it is long or has letters that are not safe there."""
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    if safe == text and len(text) <= MAX_NAME:
        return text
    return f"{safe[: MAX_NAME // 2]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _often(config: Config, varied: Collection[str]) -> Config:
    """Return the settings with validation and logging frequent enough for a curve, unless they are varied."""
    settings = config.training
    every = max(1, settings.updates // POINTS)
    # Patience counts validations.
    names = [name for name in ("log_every", "validate_every") if name == "log_every" or not settings.patience]
    often = {name: min(getattr(settings, name), every) for name in names if f"training.{name}" not in varied}
    return config.with_values("training", often)


def head_kinds() -> dict[str, type[HeadKind]]:
    """Return the settings class of every head over tokens, by its kind."""
    return {kind: member for kind, member in HeadKind.kinds().items() if member.predicts == "tokens"}


def fitting_kinds(file: Path, overrides: Sequence[str]) -> list[str]:
    """Return the kinds of heads over tokens that the settings of a file allow; all of them, if it allows none."""
    kinds = []
    for kind in head_kinds():
        with suppress(SettingsError):
            combinations([file], {KIND: [kind]}, overrides=overrides)
            kinds.append(kind)
    return kinds or list(head_kinds())


def _with_kind(config: Config, value: str) -> str:
    """Return the assignment that replaces the head by one of another kind, with the settings that both have."""
    kind, present = value.strip("\"'"), config.model.head
    member = HeadKind.kinds().get(kind)
    if member is None or member is type(present):
        return f"{KIND}={value}"
    return f"model.head={literal({'kind': kind, **_shared(present, member)})}"


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
