"""Experiments: the settings that `translume init` proposes (docs/init.md has the rules), sweeps, the demo."""

from dataclasses import dataclass

Value = str | int | float | bool | tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A proposed setting, its value and the reason."""

    path: str
    value: Value
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The settings proposed for a data set, without files.

    description: scripts or labels of the data, in words.  notes: warnings about the data.
    size: the amount of data in words; empty: the number of examples.
    """

    choices: tuple[Choice, ...]
    description: str
    notes: tuple[str, ...] = ()
    size: str = ""
