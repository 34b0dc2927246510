"""Server-sent events: texts while they are being searched, and at the end the full response.

What was sent is final: later events only extend it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from translume.errors import TranslumeError
from translume.json_values import to_bytes
from translume.serving.api.errors import noted_error
from translume.serving.api.texts import SplitTexts
from translume.translator import Generation, TextHypothesis, Translation

Event = tuple[str, Any]
"""The name and the JSON value of an event."""


UNBUFFERED: Final = {"X-Accel-Buffering": "no", "Cache-Control": "no-store, no-transform"}
"""Headers with which proxies pass each event on at once, and do not compress them together."""


class Progress:
    """The latest text of each item of a request, so a slow reader does not make it grow.

    The working thread reports texts; everything else runs in the event loop that created it.
    """

    def __init__(self, count: int) -> None:
        """count: number of items."""
        self.changed = asyncio.Event()
        """Set when a text may have grown."""
        self.texts = [""] * count
        self._loop = asyncio.get_running_loop()

    def reporter(self, place: int) -> Callable[[str], None]:
        """Return a function that threads call with the text of an item."""
        return partial(self._report, place)

    def _report(self, place: int, text: str) -> None:
        # A batch that is repeated after a failure reports the same texts again.
        if len(text) > len(self.texts[place]):
            self.texts[place] = text
            if not self.changed.is_set():
                # The loop is closed if the server was stopped meanwhile.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.changed.set)


def stream(request: Request, events: AsyncIterator[Event]) -> StreamingResponse:
    """Return a response of events; an error becomes the last one, `error`."""

    async def written() -> AsyncIterator[bytes]:
        try:
            async for kind, value in events:
                yield _event(kind, value)
        except TranslumeError as error:
            yield _event("error", noted_error(request, error).to_dict())

    return StreamingResponse(written(), media_type="text/event-stream", headers=UNBUFFERED)


def _event(kind: str, value: Any) -> bytes:
    """Return one event; its data is one line of JSON."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), to_bytes(value))


async def prefix_events(
    results: AsyncIterator[Sequence[Translation | None]],
    progress: Progress,
    split: SplitTexts,
    respond: Callable[[Sequence[Translation]], Any],
) -> AsyncIterator[Event]:
    """Yield `prefix` with the stable beginning of a text's translation, then `done`.

    results: of the lines, None for those that are not finished.  respond: returns the response from all lines.
    """
    sent = [0] * len(split.paragraphs)
    done: Sequence[Translation | None] = ()
    async for done in results:
        first = 0
        for place, paragraphs in enumerate(split.paragraphs):
            last = first + len(paragraphs.lines)
            known = next((line + 1 for line in range(first, last) if done[line] is None), last)
            lines = [
                _as_translation(prefix) if line is None else _as_translation(line.text) if line.hypotheses else line
                for prefix, line in zip(progress.texts[first:known], done[first:known], strict=True)
            ]
            text = split.prefix(place, lines) if lines else ""
            if len(text) > sent[place]:
                sent[place] = len(text)
                yield "prefix", {"place": place, "text": text}
            first = last
    yield "done", respond([line for line in done if line is not None])


async def text_events(
    results: AsyncIterator[Sequence[Generation | None]],
    progress: Progress,
    respond: Callable[[Sequence[Generation]], Any],
) -> AsyncIterator[Event]:
    """Yield `text` with the next part of a prompt's text, then `done`. Parameters are those of `prefix_events`."""
    sent = [0] * len(progress.texts)
    done: Sequence[Generation | None] = ()
    async for done in results:
        for place, generation in enumerate(done):
            text = progress.texts[place] if generation is None else generation.text
            if len(text) > sent[place]:
                yield "text", {"place": place, "text": text[sent[place] :]}
                sent[place] = len(text)
    yield "done", respond([generation for generation in done if generation is not None])


def _as_translation(text: str) -> Translation:
    """Return a translation with only a text, or its prefix."""
    only = TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")
    return Translation(source="", text=text, hypotheses=(only,))
