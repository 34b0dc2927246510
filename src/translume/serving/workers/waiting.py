"""Waiting for work, but no longer than its client does."""

import asyncio
import time
from typing import TypeVar

from starlette.requests import Request

from translume.serving.api.errors import RequestError

T = TypeVar("T")


async def unless_gone(
    waiting: "asyncio.Future[T]", gone: "asyncio.Future[None]", timeout_seconds: float, deadline: float
) -> T:
    """The result that is waited for; RequestError where the client goes (499) or the deadline comes (504) first."""
    left = max(0.0, deadline - time.monotonic())
    await asyncio.wait((waiting, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    if gone.done():
        raise RequestError(499, "the client went before its answer was there")
    raise RequestError(504, f"not done after {timeout_seconds:g} s, the request's deadline")


async def client_gone(request: Request) -> None:
    """Ends when the client has closed its connection; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
