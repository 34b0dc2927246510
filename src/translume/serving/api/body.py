"""Request bodies: reading within limits, and parsing JSON and forms.

The parsers are our own because Starlette's read without a limit on time or total size, keep uploads in temporary files
on disk, and need one more package. These parse a body that was read within the limits, in time linear in its size.
"""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError, shown

MOST_PARTS, LONGEST_HEAD = 64, 8000
"""Most parts of a multipart form, and most bytes of a part's headers that are read."""
MOST_FIELDS: Final = 1000
"""Most fields of a URL-encoded form."""
MOST_TOKENS: Final = 40_000
"""Most strings, commas and opening brackets of a JSON text. A million nested lists would take seconds and gigabytes."""
SHORT_BYTES: Final = 10_000
"""JSON texts up to this length are parsed by the event loop, longer ones one at a time in a thread."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
_PARSER: Final = ThreadPoolExecutor(1, thread_name_prefix="translume-json")
_BOUNDARY: Final = re.compile(r'boundary="?([^";,\s]{1,70})')
_NAME: Final = re.compile(
    rb'(?i)\r\ncontent-disposition:[^\r\n]{0,500}?[; ]name=(?:"([^"\r\n]{0,100})"|([^\s";]{1,100}))'
)
_FILE_NAME: Final = re.compile(
    rb"""(?i)\r\ncontent-disposition:[^\r\n]{0,500}?[; ]filename(?:="([^"\r\n]*+)|\*=utf-8''([^;\s]*+)|=([^\s";]++))"""
)


def media_type(request: Request) -> str:
    """Return the type of the body, such as application/json; empty if the request has none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body; RequestError if it arrives too slowly (408) or is too large (413).

    A body whose Content-Length is too large is refused without being read.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 19 and int(declared) > limits.body_bytes:
        raise _too_large(int(declared), limits)
    if len(declared) >= 19:
        raise RequestError(413, f"the body has more than 10^18 bytes, expected at most {limits.body_bytes:,}")
    chunks, size = [], 0
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.body_bytes:
                    raise _too_large(size, limits)
                chunks.append(chunk)
    except TimeoutError:
        reason = f"the body was incomplete after {limits.read_seconds:g} s: received {size:,} bytes"
        raise RequestError(408, reason) from None
    except ClientDisconnect:
        raise RequestError(499, "the client disconnected before it had sent the body") from None
    return b"".join(chunks)


async def read_object(request: Request, limits: Limits) -> dict[str, Any]:
    """Read a JSON object; RequestError if the body has another type (415) or is not a JSON object (400)."""
    if (found := media_type(request)) != "application/json":
        raise RequestError(415, f"content-type: found '{found}', expected application/json", field="content-type")
    value = await parsed_json(await read_body(request, limits))
    if not isinstance(value, dict):
        found = "a number" if isinstance(value, int | float) and not isinstance(value, bool) else shown(value)
        raise RequestError(400, f"the body is {found}, expected a JSON object", code="invalid_json")
    return value


async def parsed_json(body: bytes) -> Any:
    """Return what `parse_json` returns, without keeping the event loop from other requests."""
    if len(body) <= SHORT_BYTES:
        return parse_json(body)
    return await asyncio.get_running_loop().run_in_executor(_PARSER, parse_json, body)


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text; RequestError (400) if it is not JSON, or its text is not valid Unicode.

    Raises RequestError (413) if it has more than `MOST_TOKENS` tokens.
    """
    if len(body) > MOST_TOKENS and next(islice(_TOKEN.finditer(body), MOST_TOKENS, None), None) is not None:
        reason = f"the body has more than {MOST_TOKENS:,} JSON strings, commas and brackets"
        raise RequestError(413, f"{reason}, expected fewer", code="too_many_values")
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\u" in body:
            # JSON can escape half of a surrogate pair, which is not text.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body is not UTF-8 text at byte {error.start}", code="invalid_utf8") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        reason = f"the body contains {half}, half of a surrogate pair; expected whole characters"
        raise RequestError(400, reason, code="invalid_unicode") from None
    except RecursionError:
        raise RequestError(400, "the body's JSON is nested too deeply", code="invalid_json") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise RequestError(400, f"the body is not JSON: {reason}", code="invalid_json") from None
    except ValueError:
        raise RequestError(400, "the body contains a number with too many digits", code="invalid_json") from None
    return value


def _refuse_constant(name: str) -> None:
    raise RequestError(400, f"the body contains {name}, which is not JSON", code="invalid_json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPart:
    """A part of a multipart form.  file_name: as the client gives it; None if the part is a field."""

    name: str
    value: bytes
    file_name: str | None = None


def form_fields(request: Request, body: bytes) -> dict[str, str]:
    """Return the text fields of a form, URL-encoded or multipart, which replace those of the query string.

    Raises RequestError (400) if they are not UTF-8.
    """
    fields = _pairs(request.scope["query_string"])
    match media_type(request):
        case "application/x-www-form-urlencoded":
            fields |= _pairs(body)
        case "multipart/form-data":
            fields |= {part.name: _text(part.value) for part in form_parts(request, body) if part.file_name is None}
    return {name: value for name, value in fields.items() if name}


def form_values(request: Request, body: bytes, name: str) -> list[str]:
    """Return every value of a field of a form, which may occur several times; errors as for `form_fields`."""
    if media_type(request) == "multipart/form-data":
        return [_text(part.value) for part in form_parts(request, body) if part.name == name]
    form = media_type(request) == "application/x-www-form-urlencoded"
    pairs = [*_all_pairs(request.scope["query_string"]), *(_all_pairs(body) if form else ())]
    return [value for each, value in pairs if each == name]


def form_parts(request: Request, body: bytes) -> list[FormPart]:
    """Return the named parts of a multipart form (RFC 7578); RequestError (400) if it is malformed."""
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    if boundary is None:
        raise RequestError(400, "content-type: found no boundary, expected one for multipart/form-data")
    delimiter = b"\r\n--" + boundary[1].encode("latin-1")
    _, *parts = (b"\r\n" + body).split(delimiter, MOST_PARTS + 1)
    if len(parts) > MOST_PARTS:
        raise RequestError(400, f"the form has more than {MOST_PARTS} parts", code="too_many_parts")
    found = []
    for part in parts:
        head, _, value = part.partition(b"\r\n\r\n")
        name, file_name = (pattern.search(head[:LONGEST_HEAD]) for pattern in (_NAME, _FILE_NAME))
        if name is not None:
            given = None
            if file_name is not None:
                given = _text(file_name[1] or file_name[3] or unquote_to_bytes(file_name[2] or b""))
            found.append(FormPart(name=_text(name[1] or name[2] or b""), value=value, file_name=given))
    return found


def _pairs(text: bytes) -> dict[str, str]:
    return dict(_all_pairs(text))


def _all_pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
    except UnicodeDecodeError:
        raise RequestError(400, "the form is not UTF-8 text", code="invalid_utf8") from None
    except ValueError:
        raise RequestError(400, f"the form has more than {MOST_FIELDS:,} fields", code="too_many_parts") from None


def _text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise RequestError(400, "the form is not UTF-8 text", code="invalid_utf8") from None


def _too_large(size: int, limits: Limits) -> RequestError:
    return RequestError(413, f"the body has at least {size:,} bytes, expected at most {limits.body_bytes:,}")
