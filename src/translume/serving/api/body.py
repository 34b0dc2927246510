"""A request's body: read within bounds, and understood or refused."""

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError

MOST_PARTS, LONGEST_HEAD = 64, 2000
"""Of a multipart form, and bytes of a part's own head that are looked at."""
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})')
_NAME = re.compile(rb'(?i)\r\ncontent-disposition:[^\r\n]{0,500}?[; ]name="([^"\r\n]{0,100})"')
_FILE_NAME = re.compile(
    rb"""(?i)\r\ncontent-disposition:[^\r\n]{0,500}?[; ]filename(?:="([^"\r\n]{0,300})"|\*=utf-8''([^;\s]{0,900}))"""
)


def media_type(request: Request) -> str:
    """The type of the body, such as application/json; empty where none is given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body; RequestError for one that comes too slowly or is too large, unread where its head says how large."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and len(told) < 19 and int(told) > limits.body_bytes:
        raise _too_large(int(told), limits)
    if len(told) >= 19:
        raise RequestError(413, f"the body has more than 10^18 bytes, wanted at most {limits.body_bytes:,}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(size, limits)
                parts.append(part)
    except TimeoutError:
        raise RequestError(
            408, f"the body was not there after {limits.read_seconds:g} s, {size:,} bytes of it were"
        ) from None
    except ClientDisconnect:
        raise RequestError(499, "the client went before its body was there") from None
    return b"".join(parts)


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object in the body; RequestError for another type of body, or for what is no JSON object."""
    if (found := media_type(request)) != "application/json":
        raise RequestError(415, f"content-type: found '{found}', wanted application/json", field="content-type")
    value = parsed(await read_body(request, limits))
    if not isinstance(value, dict):
        raise RequestError(400, f"the body is {_kind(value)}, wanted a JSON object", code="invalid_json")
    return value


def parsed(body: bytes) -> Any:
    """The value of a JSON text; RequestError (400) for what is none, and for text that is not Unicode."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in body:
            # An escaped half of a surrogate pair is JSON, but no text.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not UTF-8 text at byte {error.start}", code="invalid_utf8") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise RequestError(
            400, f"the body holds {half}, half of a surrogate pair, wanted whole characters", code="invalid_unicode"
        ) from None
    except RecursionError:
        raise RequestError(400, "the body's JSON is nested too deeply", code="invalid_json") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise RequestError(400, f"the body is not JSON: {reason}", code="invalid_json") from None
    except ValueError:
        raise RequestError(400, "the body holds a number with too many digits", code="invalid_json") from None
    return value


def _refuse_constant(name: str) -> None:
    raise RequestError(400, f"the body holds {name}, which is no JSON", code="invalid_json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPart:
    """A part of a form.  file_name: as its client calls it; None where it is a field."""

    name: str
    value: bytes
    file_name: str | None = None


def form_fields(request: Request, body: bytes) -> dict[str, str]:
    """The text fields of a form, url-encoded or multipart, over those of the query; RequestError for broken text."""
    fields = _pairs(request.scope["query_string"])
    match media_type(request):
        case "application/x-www-form-urlencoded":
            fields |= _pairs(body)
        case "multipart/form-data":
            fields |= {part.name: _text(part.value) for part in form_parts(request, body) if part.file_name is None}
    return {name: value for name, value in fields.items() if name}


def form_parts(request: Request, body: bytes) -> list[FormPart]:
    """The named parts of a multipart form (RFC 7578), in time linear in its size; RequestError for a broken one."""
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    if boundary is None:
        raise RequestError(400, "content-type: found no boundary, wanted one for multipart/form-data")
    delimiter = b"\r\n--" + boundary[1].encode("latin-1")
    _, *parts = (b"\r\n" + body).split(delimiter, MOST_PARTS + 1)
    if len(parts) > MOST_PARTS:
        raise RequestError(400, f"the form has more than {MOST_PARTS} parts", code="too_many_parts")
    found = []
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name, file_name = (pattern.search(head[:LONGEST_HEAD]) for pattern in (_NAME, _FILE_NAME))
        if name is not None:
            told = None if file_name is None else _text(file_name[1] or unquote_to_bytes(file_name[2] or b""))
            found.append(FormPart(name=_text(name[1]), value=value, file_name=told))
    return found


def _pairs(text: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(text.decode("utf-8"), keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        raise RequestError(400, "the form is not UTF-8 text", code="invalid_utf8") from None


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(400, "the form is not UTF-8 text", code="invalid_utf8") from None


def _too_large(size: int, limits: Limits) -> RequestError:
    return RequestError(413, f"the body has {size:,} bytes or more, wanted at most {limits.body_bytes:,}")


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
