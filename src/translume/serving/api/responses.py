"""Answers as they go out: JSON without infinities, errors of one shape."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from translume.serving.api.errors import RequestError

PARTED: Final = 2
"""How deep values are written part by part: while one is written, no other thread of the process runs."""


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON text with a line break at its end; numbers that are none, such as −∞, are null."""
    text = _text(finite(value), PARTED)
    return Response(
        f"{text}\n".encode(), status_code=status, headers=dict(headers or {}), media_type="application/json"
    )


def error_answer(error: RequestError, scope: Scope) -> Response:
    """The answer that says why there is none; its code goes to the log."""
    note = scope.get("translume.note", {})
    note["code"] = error.code
    return json_answer(error.to_dict(), error.status, error.headers)


def _text(value: Any, depth: int) -> str:
    """The text of `json.dumps`, written part by part as far down as `depth` says."""
    if depth and isinstance(value, dict):
        return f"{{{', '.join(f'{_text(name, 0)}: {_text(each, depth - 1)}' for name, each in value.items())}}}"
    if depth and isinstance(value, list):
        return f"[{', '.join(_text(each, depth - 1) for each in value)}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
