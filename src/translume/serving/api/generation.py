"""/v1/generate and /v1/chat/completions: texts of a language model, whole or as server-sent events."""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from translume.config import DecodingSettings
from translume.errors import TranslumeError
from translume.serving.access.limits import Limits
from translume.serving.api.body import read_object
from translume.serving.api.cost import tokens_to_charge
from translume.serving.api.errors import RequestError
from translume.serving.api.openapi import TEXT, WORKED, body, ref, responses, with_events
from translume.serving.api.requests import MOST_GENERATED, ChatRequest, GenerateRequest, as_list, settings_with
from translume.serving.api.responses import (
    ChatResponse,
    GenerateEvent,
    GenerateResponse,
    finite,
    json_response,
)
from translume.serving.api.streaming import event
from translume.serving.server import Server
from translume.serving.workers.models import ServedGenerator
from translume.serving.workers.work import Generating, Prompt
from translume.translator import Generation

SHORT = ("text", "finished_by", "log_prob", "score")
"""Fields of a text without `detail`."""


def routes(server: Server) -> APIRouter:
    """Return the routes of language models."""
    router = APIRouter(prefix="/v1", tags=["v1"])
    generated = with_events(
        responses(GenerateResponse, "Texts that continue each prompt, in order; with `stream`, events.", *WORKED),
        ref(GenerateEvent.__name__),
    )

    @router.post("/generate", openapi_extra=body(GenerateRequest), responses=generated)
    async def generate(request: Request) -> Response:
        """Continue each prompt. With `"stream": true`, send `text` events with the next part of a text, then `done`."""
        call = GenerateRequest.parse(await read_object(request, server.limits), server.limits)
        prompts = as_list(call.prompt)
        served = server.models.generator(call.model)
        settings = await run_in_threadpool(_settings, served, call.decoding, server.limits)
        names = [f"prompt[{place}]" if isinstance(call.prompt, list) else "prompt" for place in range(len(prompts))]
        work, seconds = Generating(served.generator, settings), call.timeout_seconds or server.limits.timeout_seconds
        await server.accept(request, prompts, others=tokens_to_charge(work, prompts, server.limits))

        def respond(found: Sequence[Generation]) -> dict[str, Any]:
            return {"model": served.name, "generations": [_generation(each, detail=call.detail) for each in found]}

        if call.stream:
            events = _Texts(server, request, work, prompts, seconds, names)
            return StreamingResponse(_events(events, respond), media_type="text/event-stream")
        items = [Prompt(text=prompt) for prompt in prompts]
        found = await server.results(request, work, items, seconds, names)
        return json_response(respond(found))

    completed = with_events(
        responses(ChatResponse, "The text; with `stream`, chunks as OpenAI sends them.", *WORKED), TEXT
    )

    @router.post("/chat/completions", openapi_extra=body(ChatRequest), responses=completed)
    async def chat(request: Request) -> Response:
        """Continue the joined contents of messages, in the format of OpenAI's chat completions."""
        call = ChatRequest.parse(await read_object(request, server.limits), server.limits)
        prompt = call.prompt(server.limits)
        served = server.models.generator(call.model)
        settings = await run_in_threadpool(_settings, served, call.decoding, server.limits)
        work, seconds = Generating(served.generator, settings), server.limits.timeout_seconds
        await server.accept(request, [prompt], others=tokens_to_charge(work, [prompt], server.limits))
        about = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": served.name}
        if call.stream:
            events = _Texts(server, request, work, [prompt], seconds, ["messages"])
            return StreamingResponse(_chunks(events, about), media_type="text/event-stream")
        (found,) = await server.results(request, work, [Prompt(text=prompt)], seconds, ["messages"])
        return json_response(_completion(found, about))

    return router


class _Texts:
    """The texts of prompts while they are generated. The working thread reports them; the rest is in the event loop."""

    def __init__(
        self,
        server: Server,
        request: Request,
        work: Generating,
        prompts: Sequence[str],
        seconds: float,
        names: Sequence[str],
    ) -> None:
        """Submit the work. Raises RequestError if it cannot be submitted."""
        self.request = request
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._texts, self._sent = ["" for _ in prompts], [0 for _ in prompts]
        items = [Prompt(text=prompt, on_text=partial(self._report, place)) for place, prompt in enumerate(prompts)]
        self._results = server.partial_results(request, work, items, self._changed, seconds, names)

    async def parts(self) -> AsyncIterator[tuple[int, str] | list[Generation]]:
        """Yield the place of a prompt and the next part of its text, and at last the generations."""
        found: list[Any] = []
        async for found in self._results:
            for place, whole in enumerate(found):
                text = self._texts[place] if whole is None else whole.text
                if len(text) > self._sent[place]:
                    yield place, text[self._sent[place] :]
                    self._sent[place] = len(text)
        yield found

    def _report(self, place: int, text: str) -> None:
        # A batch that is repeated after a failure reports the same text again.
        if len(text) > len(self._texts[place]):
            self._texts[place] = text
            if not self._changed.is_set():
                # The loop is closed if the server was stopped meanwhile.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._changed.set)


async def _events(texts: _Texts, respond: Callable[[Sequence[Generation]], Any]) -> AsyncIterator[bytes]:
    try:
        async for part in texts.parts():
            if isinstance(part, list):
                yield event("done", respond(part))
            else:
                yield event("text", {"place": part[0], "text": part[1]})
    except TranslumeError as error:
        yield event("error", _noted(texts.request, error).to_dict())


async def _chunks(texts: _Texts, about: Mapping[str, Any]) -> AsyncIterator[bytes]:
    def chunk(delta: Mapping[str, str], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _data({**about, "object": "chat.completion.chunk", "choices": [choice]})

    try:
        yield chunk({"role": "assistant", "content": ""})
        async for part in texts.parts():
            yield chunk({}, _reason(part[0])) if isinstance(part, list) else chunk({"content": part[1]})
    except TranslumeError as error:
        yield _data({"error": _noted(texts.request, error).to_dict()})
    yield b"data: [DONE]\n\n"


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(finite(value), ensure_ascii=False, allow_nan=False)}\n\n".encode()


def _noted(request: Request, error: TranslumeError) -> RequestError:
    """Return an error as clients see it. The response has status 200; metrics, log and quota record the real one."""
    known = error if isinstance(error, RequestError) else RequestError(422, str(error))
    request.scope.get("translume.note", {}).update(status=known.status, code=known.code)
    return known


def _settings(served: ServedGenerator, changes: Mapping[str, Any], limits: Limits) -> DecodingSettings:
    settings = settings_with(served, changes, limits)
    if settings.max_length > MOST_GENERATED:
        reason = f"max_length: found {settings.max_length:,}, expected at most {MOST_GENERATED:,}"
        raise RequestError(422, reason, field="max_length")
    return settings


def _generation(found: Generation, *, detail: bool) -> dict[str, Any]:
    whole = found.to_dict()
    fields = (*SHORT, "tokens", "token_log_probs") if detail else SHORT
    return {
        "text": found.text,
        "prompt_tokens": found.prompt_tokens,
        "generated_tokens": len(found.hypotheses[0].ids),
        "warnings": whole["warnings"],
        "texts": [{name: each[name] for name in fields} for each in whole["hypotheses"]],
    }


def _reason(found: Generation) -> str:
    return "stop" if found.hypotheses[0].finished_by == "eos" else "length"


def _completion(found: Generation, about: Mapping[str, Any]) -> dict[str, Any]:
    generated = len(found.hypotheses[0].ids)
    message = {"role": "assistant", "content": found.text}
    return {
        **about,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": _reason(found)}],
        "usage": {
            "prompt_tokens": found.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": found.prompt_tokens + generated,
        },
    }
