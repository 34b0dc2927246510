"""API v1: translation, scoring, classification, language models, and facts about the server."""

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from translume import __version__
from translume.errors import TranslumeError
from translume.json_values import to_bytes
from translume.lazy import is_installed
from translume.serving.api import responses
from translume.serving.api.decoding import (
    accept_parts,
    constraints_of,
    loaded,
    settings_with,
    split_language,
    tokens_to_charge,
)
from translume.serving.api.errors import json_response, noted_error, refuse_more
from translume.serving.api.requests import ClassifyRequest, GenerateRequest, ScoreRequest, TranslateRequest, as_list
from translume.serving.api.routing import ALWAYS, WORKED, Routes
from translume.serving.api.texts import RequestTexts, SplitTexts, field_names, in_thread
from translume.serving.models import MANIFEST
from translume.serving.server import Server
from translume.serving.work import Classifying, Generating, Prompt, Scoring, Translating
from translume.translator import Classification, Generation, Translation

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


async def _events(
    kind: str,
    results: AsyncIterator[list[Any]],
    beginnings: Callable[[Sequence[Any]], Iterable[str]],
    respond: Callable[[Sequence[Any]], Any],
) -> AsyncIterator[Event]:
    """Yield `prefix`, the beginning of a text, or `text`, its next part, whenever it has grown; then `done`.

    results: so far, None for those that are not finished.  beginnings: returns that of each text.
    respond: returns the response from all results.
    """
    sent, done = dict[int, int](), list[Any]()
    async for done in results:
        for place, text in enumerate(beginnings(done)):
            before = sent.get(place, 0)
            if len(text) > before:
                sent[place] = len(text)
                yield kind, {"place": place, "text": text if kind == "prefix" else text[before:]}
    yield "done", respond(done)


MAX_GENERATED: Final = 4096
"""Maximum number of tokens that a request may generate for a prompt."""
THRESHOLD: Final = 0.5
"""Probability above which a classifier of several labels returns a label."""
BRIEF: Final = ("text", "log_prob", "score", "alignment")
"""Fields of a hypothesis without `detail`."""
BRIEF_GENERATION: Final = ("text", "finished_by", "log_prob", "score")
"""Fields of a generated text without `detail`."""
BATCHES: Final = (
    "where alone_equals_batched is true, a text has the same tokens and log-probabilities, bit for bit, alone and in a "
    "batch; elsewhere sums may be rounded differently: log-probabilities differ by about 1e-4, and tokens at near ties"
)
EVENTS: Final = "text/event-stream"


def add_routes(routes: Routes, server: Server, *, detects: bool) -> None:
    """Add the routes under /v1, except inspection and files, and /health.  detects: if languages are detected."""
    _add_translation(routes, server)
    _add_scoring(routes, server)
    _add_generation(routes, server)
    _add_facts(routes, server, detects=detects)
    _add_health(routes, server)


def _add_translation(routes: Routes, server: Server) -> None:
    async def accepted(request: Request, call: TranslateRequest) -> tuple[str, Translating, SplitTexts]:
        """Return the name of the model, the work and the lines of a request, which is charged."""
        served = server.models.choose(call.model, call.source, call.target)
        await loaded(served)
        alignment = {"alignment": True} if call.detail and not served.model.config.without_tokens else {}
        settings = await settings_with(served, {**alignment, **call.decoding}, server.limits)
        given = as_list(call.text)
        texts = RequestTexts(
            texts=tuple(given),
            field="text",
            names=field_names("text", len(given), several=isinstance(call.text, list)),
            language=split_language(served, call.split),
            constraints=constraints_of(call, settings),
        )
        size = sum(map(len, texts.texts))
        work, split = Translating(served.model, settings), await in_thread(size, lambda: texts.split(server.limits))
        await accept_parts(server, request, texts.texts, work, split.parts, call.decoding)
        return served.name, work, split

    def response(name: str, call: TranslateRequest, translations: Sequence[Translation]) -> dict[str, Any]:
        return {"model": name, "translations": [_translation(each, call) for each in translations]}

    @routes.on("POST /v1/translate", responses.TranslateResponse, *WORKED)
    async def translate(request: Request, call: TranslateRequest) -> Response:
        """Translate each text. Results do not depend on other requests."""
        name, work, split = await accepted(request, call)
        done = await server.results(request, work, split.parts, call.seconds, split.names)
        translations = split.join(done, work.settings.nbest)
        size = sum(len(each.text) * len(each.hypotheses) for each in translations) * (100 if call.detail else 1)
        # Details of many texts are megabytes.
        return await in_thread(size, lambda: json_response(response(name, call, translations)))

    @routes.on("POST /v1/translate/stream", None, *WORKED, media={EVENTS: responses.Event})
    async def translate_stream(request: Request, call: TranslateRequest) -> Response:
        """Translate each text, and send prefixes of the translations as they become stable, then the full response."""
        name, work, split = await accepted(request, call)
        progress = Progress(len(split.parts))
        parts = [replace(part, on_prefix=progress.reporter(place)) for place, part in enumerate(split.parts)]
        results = await server.partial_results(request, work, parts, progress.changed, call.seconds, split.names)

        def respond(lines: Sequence[Translation]) -> dict[str, Any]:
            return response(name, call, split.join(lines, work.settings.nbest))

        return stream(request, _events("prefix", results, partial(split.beginnings, progress.texts), respond))


def _translation(translation: Translation, call: TranslateRequest) -> dict[str, Any]:
    values = translation.to_dict()
    response = {name: values[name] for name in ("text", "warnings")}
    if call.detail:
        response["hypotheses"] = values["hypotheses"]
    elif len(translation.hypotheses) > 1 or any(each.alignment for each in translation.hypotheses):
        response["hypotheses"] = brief(values["hypotheses"], BRIEF)
    return response


def brief(hypotheses: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> list[dict[str, Any]]:
    """Return some fields of hypotheses."""
    return [{name: each[name] for name in fields if name in each} for each in hypotheses]


def _add_scoring(routes: Routes, server: Server) -> None:
    """Add /v1/score and /v1/classify."""

    @routes.on("POST /v1/score", responses.ScoreResponse, *WORKED)
    async def score(request: Request, call: ScoreRequest) -> Any:
        """Score each pair of a source and a target: log-probabilities in nats, token by token."""
        sources, targets = as_list(call.sources), as_list(call.targets)
        served = server.models.choose(call.model, call.source, call.target)
        await loaded(served)
        await server.accept(request, (*sources, *targets))
        names = field_names("pairs", len(sources), several=True)
        work, pairs = Scoring(served.model, **served.direction), [*zip(sources, targets, strict=True)]
        scores = await server.results(request, work, pairs, call.seconds, names)
        return {"model": served.name, "scores": [each.to_dict() for each in scores]}

    @routes.on("POST /v1/classify", responses.ClassifyResponse, *WORKED)
    async def classify(request: Request, call: ClassifyRequest) -> Any:
        """Classify each text: labels with probabilities, the most probable first."""
        texts, served = as_list(call.text), server.models.only("classify", call.model)
        await server.accept(request, texts)
        names = field_names("text", len(texts), several=isinstance(call.text, list))
        classified = await server.results(request, Classifying(served.model), texts, call.seconds, names)
        return {"model": served.name, "classifications": [_labels(each, call.nbest) for each in classified]}


def _labels(classification: Classification, nbest: int) -> dict[str, Any]:
    """Return a classification with its margin, as `responses.Classification` defines it."""
    values = classification.to_dict(nbest)
    del values["source"]
    probabilities = [probability for _, probability in classification.probabilities]
    closest = min(abs(each - THRESHOLD) for each in probabilities)
    return {**values, "margin": closest if classification.separator else probabilities[0] - probabilities[1]}


def _add_generation(routes: Routes, server: Server) -> None:
    @routes.on("POST /v1/generate", responses.GenerateResponse, *WORKED, media={EVENTS: responses.Event})
    async def generate(request: Request, call: GenerateRequest) -> Any:
        """Continue each prompt. With `"stream": true`, send `text` events with the next part of a text, then `done`."""
        prompts, served = as_list(call.prompt), server.models.only("generate", call.model)
        settings = await settings_with(served, call.decoding, server.limits)
        refuse_more("max_length", settings.max_length, "", MAX_GENERATED, status=422)
        names = field_names("prompt", len(prompts), several=isinstance(call.prompt, list))
        work = Generating(served.model, settings)
        await server.accept(request, prompts, others=tokens_to_charge(work, prompts, server.limits))

        def respond(generations: Sequence[Generation]) -> dict[str, Any]:
            return {
                "model": served.name,
                "generations": [_generation(each, detail=call.detail) for each in generations],
            }

        if not call.stream:
            items = [Prompt(text=prompt) for prompt in prompts]
            return respond(await server.results(request, work, items, call.seconds, names))
        progress = Progress(len(prompts))
        items = [Prompt(text=prompt, on_text=progress.reporter(place)) for place, prompt in enumerate(prompts)]
        results = await server.partial_results(request, work, items, progress.changed, call.seconds, names)

        def beginnings(done: Sequence[Generation | None]) -> Iterable[str]:
            return (text if each is None else each.text for text, each in zip(progress.texts, done, strict=True))

        return stream(request, _events("text", results, beginnings, respond))


def _generation(generation: Generation, *, detail: bool) -> dict[str, Any]:
    values = generation.to_dict()
    fields = (*BRIEF_GENERATION, "tokens", "token_log_probs") if detail else BRIEF_GENERATION
    return {
        "text": generation.text,
        "prompt_tokens": generation.prompt_tokens,
        "generated_tokens": len(generation.hypotheses[0].ids),
        "warnings": values["warnings"],
        "texts": brief(values["hypotheses"], fields),
    }


def _add_facts(routes: Routes, server: Server, *, detects: bool) -> None:
    """Add /v1/models and /v1/info."""

    @routes.on("GET /v1/models", responses.ModelsResponse, *ALWAYS)
    async def models() -> Any:
        """List the models: languages, sizes, default decoding settings, and the endpoints they serve."""
        return {"models": [each.to_dict() for each in server.models.all]}

    @routes.on("GET /v1/info", responses.Info, *ALWAYS)
    async def info() -> Any:
        """Return versions and limits, and for each model its digest and its engine's self-test."""
        facts = {each.name: each.facts for each in server.models.all}
        return {
            "version": __version__,
            "versions": versions(),
            "limits": server.limits.model_dump(),
            "waiting": server.scheduler.waiting,
            "engines": {name: each["engine"] for name, each in facts.items()},
            "manifests": {name: each[MANIFEST] for name, each in facts.items() if MANIFEST in each},
            "licences": {name: each["licence"] for name, each in facts.items() if "licence" in each},
            "offers": {name: each["offers"] for name, each in facts.items()},
            "detects": detects,
            "batches": BATCHES,
        }


PROBE_SECONDS: Final = 5.0


def versions() -> dict[str, str | None]:
    """Return the versions of the software that results depend on."""
    torch = installed("torch") if is_installed() else None
    return {"translume": __version__, "torch": torch, "python": platform.python_version()}


def _add_health(routes: Routes, server: Server) -> None:
    """Add /health/live and /health/ready."""
    probes: list[asyncio.Task[None]] = []

    async def probe() -> None:
        for served in server.models.all:
            if served.loaded:
                work, item = served.probe()
                await server.results(None, work, [item], PROBE_SECONDS)

    @routes.on("GET /health/live", responses.Live, *ALWAYS)
    async def live() -> Any:
        """Check that the server responds."""
        return {"status": "live"}

    @routes.on("GET /health/ready", responses.Ready, 504, *ALWAYS)
    async def ready() -> Any:
        """Check that every model processes a short text within 5 s (else 503 or 504), and report the last reload."""
        # Requests at the same time share a probe: no key is required here.
        if not probes or probes[0].done():
            probes[:] = [asyncio.ensure_future(probe())]
        await asyncio.shield(probes[0])
        return {"status": "ready"} | ({} if server.reloaded is None else {"last_reload": server.reloaded})
