"""POST /v1/classify: what texts are, by the classifiers of a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from translume.errors import TranslumeError, nearest
from translume.serving.api import schema
from translume.serving.api.answer_schema import CLASSIFIED, WORKED, answers
from translume.serving.api.body import read_object
from translume.serving.api.errors import RequestError
from translume.serving.api.requests import refuse_unknown, shown, texts_in, timeout, typed
from translume.serving.api.responses import json_answer
from translume.serving.server import Server
from translume.serving.workers.models import Models, ServedClassifier
from translume.serving.workers.proxy import Classifies
from translume.translator import Classification
from translume.translator.plan import LineError

CERTAIN = 0.5
"""A text of several labels has those that are likelier than this."""


def routes(server: Server) -> APIRouter:
    """/v1/classify."""
    router = APIRouter(prefix="/v1", tags=["v1"])
    classifications = answers(CLASSIFIED, "The labels of each text, in order.", *WORKED)

    @router.post("/classify", openapi_extra=schema.CLASSIFY, responses=classifications)
    async def classify(request: Request) -> Response:
        """Labels of each text, in order, with the probability of every label, likeliest first."""
        values = await read_object(request, server.limits)
        refuse_unknown(values, ("text", "model", "nbest", "timeout_seconds"))
        texts = texts_in(values, "text", server.limits)
        served, nbest = _chosen(typed(values, "model", str, ""), server.models), _nbest(values)
        seconds = timeout(values, server.limits)
        several = isinstance(values["text"], list)
        names = [f"text[{place}]" if several else "text" for place in range(len(texts))]
        await server.accept(request, texts)
        found = await server.done(request, Classifying(served.classifier), texts, seconds, names)
        return json_answer({"model": served.name, "classifications": [_told(each, nbest) for each in found]})

    return router


@dataclass(frozen=True, slots=True)
class Classifying:
    """Labels texts."""

    classifier: Classifies

    def size(self, item: str) -> int:
        """Tokens with an end mark, as many as are read at most."""
        longest = self.classifier.config.model.max_positions
        return min(len(self.classifier.checkpoint.source_tokenizer.encode(item)) + 1, longest)

    def run(self, items: Sequence[str]) -> list[Classification | TranslumeError]:
        """A Classification a text, or the RequestError of one that is too long."""
        done: list[Classification | TranslumeError] = []
        while len(done) < len(items):
            try:
                done.extend(self.classifier.classify_all(items[len(done) :]))
            except LineError as error:
                # `extend` has kept what came before it.
                reason = str(error).removeprefix(f"{error.line.place}: ").partition("; decoding.")[0]
                done.append(RequestError(422, reason, code="text_too_long", field="text"))
        return done


def _chosen(name: str, models: Models) -> ServedClassifier:
    """The classifier of a name, or the only one; RequestError (404 or 422) where there is none."""
    known = models.classifiers
    if not known:
        raise RequestError(404, "model: this server has no classifier", code="no_classifier", field="model")
    if name in known:
        return known[name]
    if name:
        raise RequestError(404, f"model: no such classifier{nearest(name, known)}", code="unknown_model", field="model")
    if len(known) > 1:
        raise RequestError(422, f"model: found nothing, wanted one of: {', '.join(known)}", field="model")
    return next(iter(known.values()))


def _nbest(values: Mapping[str, Any]) -> int:
    """How many labels are told; 0 for all."""
    value = values.get("nbest", 0)
    if "nbest" in values and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise RequestError(422, f"nbest: found {shown(value)}, wanted a whole number above 0", field="nbest")
    return int(value)


def _told(found: Classification, nbest: int) -> dict[str, Any]:
    """A classification with its margin: how far the second label is behind, or the nearest one is from being chosen."""
    values = found.to_dict(nbest)
    del values["source"]
    probabilities = [probability for _, probability in found.probabilities]
    nearest_cut = min(abs(each - CERTAIN) for each in probabilities)
    return {**values, "margin": nearest_cut if found.separator else probabilities[0] - probabilities[1]}
