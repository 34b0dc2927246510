"""JSON messages for worker processes: lines, settings, translations and errors."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import numpy as np
from pydantic import TypeAdapter

from translume.config import Config, DecodingSettings
from translume.config.languages import Direction
from translume.errors import TranslumeError
from translume.processes import decode_error as decode_known_error
from translume.processes import encode_error as encode_known_error
from translume.sources import Frames
from translume.translator.planning import Line, LineError
from translume.translator.results import Translation

TRANSLATIONS: Final = TypeAdapter(list[Translation])
CHUNK: Final = 16
"""Results per message."""

T = TypeVar("T")


def encode(kind: TypeAdapter[T], value: T) -> bytes:
    """Return a value as JSON. `kind.validate_json` gives an equal value, also for infinities."""
    return json.dumps(kind.dump_python(value, mode="json")).encode()


def encode_results(kind: TypeAdapter[list[T]], results: Iterable[T]) -> Iterator[bytes]:
    """Yield results in chunks, as JSON for `kind`. An error comes after the chunk of those before it."""
    chunk: list[T] = []
    error: TranslumeError | None = None
    try:
        for each in results:
            chunk.append(each)
            if len(chunk) == CHUNK:
                yield encode(kind, chunk)
                chunk = []
    except TranslumeError as caught:
        error = caught
    if chunk:
        yield encode(kind, chunk)
    if error is not None:
        raise error


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON values for `decode_error`."""
    if isinstance(error, LineError):
        return {"line": error.line.number, "reason": error.reason}
    return encode_known_error(error)


def decode_error(values: Mapping[str, Any]) -> Exception:
    """Return the error of `encode_error`; of a LineError's line the number."""
    if "line" in values:
        return LineError(Line(number=values["line"], text=""), values["reason"])
    return decode_known_error(values)


def encode_settings(settings: DecodingSettings) -> dict[str, Any]:
    """Return settings as JSON values for `decode_settings`."""
    return settings.model_dump(mode="json")


def decode_settings(values: Mapping[str, Any]) -> DecodingSettings:
    """Return the settings of `encode_settings`."""
    return Config.build({"decoding": values}, place="request").decoding


def encode_lines(lines: Sequence[Line]) -> list[list[Any]]:
    """Return lines as JSON values for `decode_lines`. The values of frames are those of `encode_frames`."""
    return [
        [
            line.number,
            line.text,
            line.constraints,
            line.direction and (line.direction.source, line.direction.target),
            line.target,
            line.given.values.shape if isinstance(line.given, Frames) else None,
        ]
        for line in lines
    ]


def encode_frames(lines: Sequence[Line]) -> bytes:
    """Return the values of the frames of lines, one after the other."""
    return b"".join(each.given.values.tobytes() for each in lines if isinstance(each.given, Frames))


def decode_lines(values: Sequence[Sequence[Any]], frames: bytes = b"") -> list[Line]:
    """Return the lines of `encode_lines`.  frames: those of `encode_frames`."""
    shapes = [tuple(shape) for *_, shape in values if shape is not None]
    ends = accumulate(map(math.prod, shapes))
    whole = np.frombuffer(frames, np.float32)
    given = (
        Frames(whole[end - math.prod(shape) : end].reshape(shape)) for shape, end in zip(shapes, ends, strict=True)
    )
    return [
        Line(
            number=number,
            text=text,
            constraints=tuple(held),
            direction=Direction(source=direction[0], target=direction[1]) if direction else None,
            target=target,
            given=None if shape is None else next(given),
        )
        for number, text, held, direction, target, shape in values
    ]
