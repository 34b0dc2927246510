"""What goes between the server and its worker processes, as plain data: nothing in it can run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

from translume.config import Config, DecodingSettings
from translume.errors import DataError, ModelFolderError, SettingsError, TranslationError, TranslumeError
from translume.serving.api.errors import RequestError
from translume.translator import Classification, TargetScore, TextHypothesis, Translation
from translume.translator.plan import Line, LineError

TRANSLATIONS: Final = TypeAdapter(list[Translation])
HYPOTHESIS: Final = TypeAdapter(TextHypothesis)
SCORE: Final = TypeAdapter(TargetScore)
CLASSIFICATION: Final = TypeAdapter(Classification)
NUMBERS: Final = TypeAdapter(list[float])

T = TypeVar("T")


KNOWN: Final = {each.__name__: each for each in (SettingsError, ModelFolderError, DataError, TranslationError)}
"""Errors that are told apart beyond their text."""


class FailedElsewhereError(RuntimeError):
    """An error that nobody foresaw, in another process.  kind: its name.  places: where it came from."""

    def __init__(self, kind: str, places: str) -> None:
        super().__init__(kind)
        self.kind, self.places = kind, places


def result(kind: TypeAdapter[T], value: T) -> bytes:
    """A result as JSON, which `kind.validate_json` reads back to the same value, infinities and all."""
    return json.dumps(kind.dump_python(value, mode="json")).encode()


def settings_text(settings: DecodingSettings) -> dict[str, Any]:
    """Settings that `settings_of` reads back."""
    return settings.model_dump(mode="json")


def settings_of(values: Mapping[str, Any]) -> DecodingSettings:
    """The settings in plain values."""
    return Config.build({"decoding": values}, place="request").decoding


def lines_text(lines: Sequence[Line]) -> list[list[Any]]:
    """Lines that `lines_of` reads back."""
    return [[line.number, line.text, line.constraints] for line in lines]


def lines_of(values: Sequence[Sequence[Any]]) -> list[Line]:
    """The lines in plain values."""
    return [Line(number=number, text=text, constraints=tuple(held)) for number, text, held in values]


def error_text(error: BaseException, places: str) -> dict[str, Any]:
    """An error that `error_of` makes anew; of one that nobody foresaw, its kind and where it came from, not its words.

    places: where that was.
    """
    match error:
        case LineError():
            reason = str(error).removeprefix(f"{error.line.place}: ")
            return {"kind": "line", "number": error.line.number, "reason": reason}
        case RequestError():
            own = {"status": error.status, "code": error.code, "field": error.field, "retry_after": error.retry_after}
            return {"kind": "request", "reason": str(error), **own}
        case TranslumeError():
            known = next((name for name, each in KNOWN.items() if isinstance(error, each)), "")
            return {"kind": "told", "name": known, "reason": str(error)}
        case _:
            return {"kind": "failed", "name": type(error).__name__, "places": places}


def error_of(values: Mapping[str, Any]) -> Exception:
    """The error in plain values."""
    match values["kind"]:
        case "line":
            return LineError(Line(number=values["number"], text=""), values["reason"])
        case "request":
            about = {name: values[name] for name in ("code", "field", "retry_after")}
            return RequestError(values["status"], values["reason"], **about)
        case "told":
            return KNOWN.get(values["name"], TranslumeError)(values["reason"])
        case _:
            return FailedElsewhereError(values["name"], values["places"])
