"""Bodies of requests: read within the limits of size and time, and parsed as strict JSON or as forms."""

import asyncio
import codecs
import json
import re
import time
import zlib
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request

from translume.serving.api.errors import RequestError, field_error, shown
from translume.serving.settings import Limits

LIMITS: Final = ContextVar("limits", default=Limits())  # noqa: B039 - frozen
"""The limits that the models of requests are validated against: those of the server."""
JSON: Final = "application/json"
FORM: Final = "multipart/form-data"
URL_ENCODED: Final = "application/x-www-form-urlencoded"
FORM_BYTES: Final = 20_000
"""Maximum number of bytes of a form besides its file."""
FORM_LIMITS: Final[Any] = {"max_files": 8, "max_fields": 64, "max_part_size": FORM_BYTES}
MAX_FIELDS: Final = 1000
"""Maximum number of fields of a query string."""
MAX_TOKENS: Final = 40_000
"""Maximum number of strings, commas and opening brackets of a JSON text: a million empty lists take seconds."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
SHORT_BYTES: Final = 10_000
"""JSON texts up to this length are parsed by the event loop, longer ones in a thread."""

TAIL_BYTES: Final = 2048
"""Bytes at the end of a form that must have its final boundary."""


class ApiRequest(Request):
    """A request whose body is read within the limits."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the body, unpacked; RequestError if it arrives too slowly (408) or is too large (413).

        A body whose Content-Length is too large is rejected without being read. A form must end with its boundary.
        """
        limits = LIMITS.get()
        maximum, seconds = limits.body_bytes, limits.read_seconds
        is_form = media_type(self) == FORM
        if is_form:
            maximum, seconds = max(maximum, limits.file_bytes + FORM_BYTES), max(seconds, limits.timeout_seconds)
        declared = self.headers.get("content-length", "0")
        if len(declared) > 18 or (declared.isdecimal() and int(declared) > maximum):
            raise RequestError(413, f"the body has {declared:.20} bytes, expected at most {maximum:,}")
        unpack = _unpacker(self.headers.get("content-encoding", ""), maximum)
        size, until, chunks, tail = 0, time.monotonic() + seconds, super().stream(), b""
        while True:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                reason = f"the body was incomplete after {seconds:g} s: received {size:,} bytes"
                raise RequestError(408, reason) from None
            except ClientDisconnect:
                raise RequestError(499, "the client disconnected before it had sent the body") from None
            if chunk is None:
                unpack(None)
                if is_form and b"--%b--" % _boundary(self) not in tail:
                    raise RequestError(400, "the form is incomplete: it does not end with its boundary")
                return
            chunk = unpack(chunk)
            tail = (tail + chunk)[-TAIL_BYTES:] if is_form else b""
            size += len(chunk)
            if size > maximum:
                raise RequestError(413, f"the body has at least {size:,} bytes, expected at most {maximum:,}")
            yield chunk

    async def fields(self, *, query: bool = True) -> dict[str, Any]:
        """Return the fields of the request, from JSON or else from a form and, with `query`, the query string.

        The value of a field that a form has several times is a list. Raises RequestError (400) for a malformed body,
        and for several files: all but one would be ignored.
        """
        kind = media_type(self)
        if kind == JSON:
            body = await self.body()
            return parse_json(body) if len(body) <= SHORT_BYTES else await run_in_threadpool(parse_json, body)
        pairs: list[tuple[str, Any]] = [*_pairs(self.scope["query_string"])] if query else []
        if kind == FORM:
            pairs += (await self.form(**FORM_LIMITS)).multi_items()
        elif body := await self.body():
            pairs += _pairs(body) if kind == URL_ENCODED else []
        values: dict[str, list[Any]] = {}
        for name, text in pairs:
            values.setdefault(name, []).append(text)
        for name, texts in values.items():
            if len(texts) > 1 and (name == "file" or any(isinstance(each, UploadFile) for each in texts)):
                raise field_error(name, f"found {len(texts)} parts, expected one", 400, "too_many_parts")
        return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _unpacker(encoding: str, maximum: int) -> Callable[[bytes | None], bytes]:
    """Return a function that unpacks the chunks of a body, and is called with None at its end.

    It raises RequestError: 415 for an encoding other than gzip, 413 for more than `maximum` bytes, 400 for damage.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return lambda chunk: chunk or b""
    if name not in ("gzip", "x-gzip"):
        reason = f"found '{name[:40]}', expected gzip or identity"
        raise field_error("content-encoding", reason, 415, "unsupported_encoding")
    packed = zlib.decompressobj(16 + zlib.MAX_WBITS)
    left = maximum + 1

    def unpack(chunk: bytes | None) -> bytes:
        nonlocal left
        try:
            unpacked = packed.decompress(chunk or b"", left)
        except zlib.error:
            raise RequestError(400, "the body is not gzip", code="invalid_gzip", field="content-encoding") from None
        left -= len(unpacked)
        if left <= 0:
            raise RequestError(413, f"the body unpacks to more than {maximum:,} bytes")
        if (chunk is None and not packed.eof) or packed.unused_data:
            raise RequestError(400, "the body is not whole gzip", code="invalid_gzip", field="content-encoding")
        return unpacked

    return unpack


def _boundary(request: Request) -> bytes:
    return parse_options_header(request.headers["content-type"])[1].get(b"boundary", b"")


def media_type(request: Request) -> str:
    """Return the type of the body, such as application/json; empty if the request has none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_json(body: bytes) -> dict[str, Any]:
    """Return the object of a JSON text; RequestError (400) if it is not JSON, or its text is not valid Unicode.

    Raises RequestError (413) if it has more than `MAX_TOKENS` tokens.
    """
    if len(body) > MAX_TOKENS and next(islice(_TOKEN.finditer(body), MAX_TOKENS, None), None) is not None:
        reason = f"the body has more than {MAX_TOKENS:,} JSON strings, commas and brackets"
        raise RequestError(413, f"{reason}, expected fewer", code="too_many_values")
    if not body:
        raise RequestError(400, "the body is empty, expected a JSON object", code="invalid_json")
    try:
        value = json.loads(body.removeprefix(codecs.BOM_UTF8).decode("utf-8"), parse_constant=_reject_constant)
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
    if not isinstance(value, dict):
        raise RequestError(400, f"the body is {shown(value)}, expected a JSON object", code="invalid_json")
    return value


def _reject_constant(name: str) -> None:
    raise RequestError(400, f"the body contains {name}, which is not JSON", code="invalid_json")


def _pairs(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise RequestError(400, "the form is not UTF-8 text", code="invalid_utf8") from None
    except ValueError:
        raise RequestError(400, f"the form has more than {MAX_FIELDS:,} fields", code="too_many_parts") from None
