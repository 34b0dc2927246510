"""Server-sent events of a request: what is certain already, token by token, and in the end the plain answer.

A `prefix` is what the translation of a text begins with, whatever comes; none is ever taken back.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse

from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.api.responses import finite
from translume.serving.api.texts import Split, Texts
from translume.serving.server import Server
from translume.serving.workers.work import Part, Translating
from translume.translator import TextHypothesis, Translation


def streamed(
    server: Server, request: Request, work: Translating, texts: Texts, answer: Callable[[list[Translation]], Any]
) -> StreamingResponse:
    """Events `prefix` (place of a text, its beginning), then `done` with the answer, or `error`.

    answer: the plain answer from the translations of the texts. Raises RequestError for what can be known at once.
    """
    split = texts.split(server.limits)
    growing = Growing(split)
    looks = server.looks(request, work, growing.parts, growing.changed, texts.timeout_seconds, split.names)

    async def events() -> AsyncIterator[bytes]:
        found: Sequence[Translation | None] = ()
        try:
            async for found in looks:
                for place, text in growing.news(found):
                    yield event("prefix", {"place": place, "text": text})
            yield event("done", answer(split.join([each for each in found if each], work.settings.nbest)))
        except TranslumeError as error:
            known = error if isinstance(error, RequestError) else RequestError(422, str(error))
            # The head has gone out as 200; the count, the log and the key are told what became of it.
            request.scope.get("translume.note", {}).update(status=known.status, code=known.code)
            yield event("error", known.to_dict())

    return StreamingResponse(events(), media_type="text/event-stream")


def event(kind: str, value: Any) -> bytes:
    """One event; its data is one line of JSON."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()


class Growing:
    """What the translations of texts are certain to begin with, for an answer in the making.

    It keeps the newest alone, whatever its reader has missed: one who is slow makes nothing grow. The thread that works
    tells it of lines; all else belongs to the event loop that it was made in.
    """

    def __init__(self, split: Split) -> None:
        self.changed = asyncio.Event()
        """Set when there may be news."""
        self._split, self._loop = split, asyncio.get_running_loop()
        self._begun = ["" for _ in split.parts]
        self._given = [0 for _ in split.paragraphs]

    @property
    def parts(self) -> list[Part]:
        """The lines of all texts, to be worked on."""
        return [replace(part, tell=partial(self._tell, place)) for place, part in enumerate(self._split.parts)]

    def news(self, found: Sequence[Translation | None]) -> list[tuple[int, str]]:
        """The places of texts of which more is certain than was given before, and their beginnings.

        found: the translations of the lines that are done already.
        """
        news, first = [], 0
        for place, paragraphs in enumerate(self._split.paragraphs):
            last = first + len(paragraphs.lines)
            known = next((line + 1 for line in range(first, last) if found[line] is None), last)
            lines = [
                _beginning(begun) if whole is None else _beginning(whole.text) if whole.hypotheses else whole
                for begun, whole in zip(self._begun[first:known], found[first:known], strict=True)
            ]
            text = self._split.begun(place, lines) if lines else ""
            if len(text) > self._given[place]:
                self._given[place] = len(text)
                news.append((place, text))
            first = last
        return news

    def _tell(self, line: int, text: str) -> None:
        # Work that is done once more begins anew, and says nothing else.
        if len(text) > len(self._begun[line]):
            self._begun[line] = text
            if not self.changed.is_set():
                # Nobody listens any more where the loop is closed: the server was stopped.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.changed.set)


def _beginning(text: str) -> Translation:
    """A translation of which no more is known than its text, or what that begins with."""
    only = TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")
    return Translation(source="", text=text, hypotheses=(only,))
