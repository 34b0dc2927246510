"""Server-sent events of /v1/translate/stream: stable prefixes of translations, and at the end the full response.

A `prefix` event has the beginning of a text's translation. It is final: later events only extend it.
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
from translume.serving.api.texts import SplitTexts
from translume.serving.server import Server
from translume.serving.workers.work import Part, Translating
from translume.translator import TextHypothesis, Translation


def stream(
    server: Server,
    request: Request,
    work: Translating,
    split: SplitTexts,
    respond: Callable[[list[Translation]], Any],
) -> StreamingResponse:
    """Return a stream of events: `prefix` (index of a text, its prefix), then `done` or `error`.

    respond: returns the full response from the translations of the texts.
    Raises RequestError if the work cannot be submitted.
    """
    prefixes = Prefixes(split)
    results = server.partial_results(
        request, work, prefixes.parts, prefixes.changed, split.texts.timeout_seconds, split.names
    )

    async def events() -> AsyncIterator[bytes]:
        found: Sequence[Translation | None] = ()
        try:
            async for found in results:
                for place, text in prefixes.updates(found):
                    yield event("prefix", {"place": place, "text": text})
            yield event("done", respond(split.join([each for each in found if each], work.settings.nbest)))
        except TranslumeError as error:
            known = error if isinstance(error, RequestError) else RequestError(422, str(error))
            # The response started with status 200; metrics, log and quota record the real status.
            request.scope.get("translume.note", {}).update(status=known.status, code=known.code)
            yield event("error", known.to_dict())

    return StreamingResponse(events(), media_type="text/event-stream")


def event(kind: str, value: Any) -> bytes:
    """Return one event; its data is one line of JSON."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\ndata: {text}\n\n".encode()


class Prefixes:
    """The stable prefixes of the translations of texts while they are being searched.

    It keeps only the latest prefix of each line, so a slow reader does not make it grow. The working thread reports
    prefixes of lines; everything else runs in the event loop that created it.
    """

    def __init__(self, split: SplitTexts) -> None:
        self.changed = asyncio.Event()
        """Set when a prefix may have grown."""
        self._split, self._loop = split, asyncio.get_running_loop()
        self._of_lines = ["" for _ in split.parts]
        self._sent = [0 for _ in split.paragraphs]

    @property
    def parts(self) -> list[Part]:
        """The lines of all texts, which report their prefixes here."""
        return [replace(part, on_prefix=partial(self._report, place)) for place, part in enumerate(self._split.parts)]

    def updates(self, found: Sequence[Translation | None]) -> list[tuple[int, str]]:
        """Return the index and the prefix of each text whose prefix has grown since the last call.

        found: the translations of the lines that are finished.
        """
        updates, first = [], 0
        for place, paragraphs in enumerate(self._split.paragraphs):
            last = first + len(paragraphs.lines)
            known = next((line + 1 for line in range(first, last) if found[line] is None), last)
            lines = [
                _as_translation(prefix) if whole is None else _as_translation(whole.text) if whole.hypotheses else whole
                for prefix, whole in zip(self._of_lines[first:known], found[first:known], strict=True)
            ]
            text = self._split.prefix(place, lines) if lines else ""
            if len(text) > self._sent[place]:
                self._sent[place] = len(text)
                updates.append((place, text))
            first = last
        return updates

    def _report(self, line: int, text: str) -> None:
        # A batch that is repeated after a failure reports the same prefixes again.
        if len(text) > len(self._of_lines[line]):
            self._of_lines[line] = text
            if not self.changed.is_set():
                # The loop is closed if the server was stopped meanwhile.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.changed.set)


def _as_translation(text: str) -> Translation:
    """Return a translation with only a text, or its prefix."""
    only = TextHypothesis(text=text, tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")
    return Translation(source="", text=text, hypotheses=(only,))
