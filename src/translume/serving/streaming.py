"""Server-sent events of a request: what is certain already, line by line, and in the end the plain answer.

A `prefix` is what the translation of a text begins with, whatever comes; none is ever taken back.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.responses import StreamingResponse

from translume.errors import TranslumeError
from translume.serving.answers import finite
from translume.serving.request_error import RequestError
from translume.serving.texts import Split
from translume.translator import Translation


def streamed(
    results: AsyncIterator[Translation], split: Split, nbest: int, answer: Callable[[Sequence[Translation]], Any]
) -> StreamingResponse:
    """Events `prefix` (place of a text, its beginning), then `done` with the answer, or `error`.

    results: of the lines of `split`, in order.  answer: the plain answer from the translations of the texts.
    """

    async def events() -> AsyncIterator[bytes]:
        done: list[Translation] = []
        try:
            async for each in results:
                done.append(each)
                place, text = split.begun(done, nbest)
                yield event("prefix", {"place": place, "text": text})
            yield event("done", answer(split.join(done, nbest)))
        except TranslumeError as error:
            known = error if isinstance(error, RequestError) else RequestError(422, str(error))
            yield event("error", known.to_dict())

    return StreamingResponse(events(), media_type="text/event-stream")


def event(kind: str, value: Any) -> bytes:
    """One event; its data is one line of JSON."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()
