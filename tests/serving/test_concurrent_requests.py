"""Responses to many concurrent requests equal those to the same requests sent one at a time."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.serving.conftest import nearly_equal

from translume.serving.models import ServedModel
from translume.translator import Translator

KINDS: list[dict[str, Any]] = [
    {},
    {"strategy": "greedy"},
    {"strategy": "greedy", "detail": True},
    {"beam": 4, "nbest": 3},
    {"beam": 2, "nbest": 2, "detail": True},
    {"beam": 5, "length_penalty": 0.5, "coverage_penalty": 0.2},
    {"strategy": "sampling", "samples": 3, "nbest": 2, "seed": 7},
    {"strategy": "stochastic", "samples": 3, "seed": 5},
    {"strategy": "diverse", "beam": 4, "groups": 2, "nbest": 2},
    {"prefix": "ab", "min_length": 3},
    {"ban": ["a"], "no_repeat_ngram": 2},
    {"utility": "chrf", "beam": 3},
    {"placeholders": ["number"]},
]


def mixed(count: int, seed: int = 11) -> list[tuple[str, dict[str, Any]]]:
    """Return random paths and bodies: two language pairs, zero to three lines, streams, scores."""
    draw = random.Random(seed)

    def line() -> str:
        words = ("".join(draw.choices("abcdefgh7", k=draw.randint(1, 4))) for _ in range(draw.randint(0, 4)))
        return " ".join(words)

    def text() -> str:
        return "\n".join(line() for _ in range(draw.choice([1, 1, 1, 2, 3])))

    requests: list[tuple[str, dict[str, Any]]] = []
    for _ in range(count):
        pair = dict(zip(("source", "target"), draw.choice([("en", "de"), ("de", "fr")]), strict=True))
        way = draw.choice(["/v1/translate"] * 4 + ["/v1/translate/stream"] * 3 + ["/v1/score", "/translate"])
        if way == "/v1/score":
            requests.append((way, {"sources": [line(), line()], "targets": [line(), line()], **pair}))
        elif way == "/translate":
            requests.append((way, {"q": line() or "a", "alternatives": draw.randint(0, 2), **pair}))
        else:
            texts = text() if draw.random() < 0.5 else [text() for _ in range(draw.randint(1, 3))]
            requests.append((way, {"text": texts, "max_length": 8, **pair, **draw.choice(KINDS)}))
    return requests


def last_of(answer: Any) -> Any:
    """Return the value of a response, or of the last event of a stream after checking that all prefixes begin it."""
    assert answer.status == 200, answer.body
    if not answer.headers["Content-Type"].startswith("text/event-stream"):
        return answer.json()
    events = [part.split("\ndata: ") for part in answer.body.decode().split("\n\n")[:-1]]
    assert events[-1][0] == "event: done"
    last = json.loads(events[-1][1])
    for _, data in events[:-1]:
        prefix = json.loads(data)
        assert last["translations"][prefix["place"]]["text"].startswith(prefix["text"])
    return last


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_concurrent_mixed_requests_get_the_responses_they_get_alone(
    start: Callable[..., Any], make: Callable[..., Translator], count: int
) -> None:
    first, second = make("decoding.beam=3"), make("decoding.beam=2", "data.source_language=de",
                                                  "data.target_language=fr", seed=5)  # fmt: skip
    live = start(
        ServedModel.from_model("en-de", first), ServedModel.from_model("de-fr", second), requests=2000, queue=20_000
    )
    requests = mixed(count)
    alone = [last_of(live.post(path, body)) for path, body in requests]
    with ThreadPoolExecutor(count) as clients:
        found = list(clients.map(lambda each: last_of(live.post(*each)), requests))
    for each, one, other in zip(requests, found, alone, strict=True):
        assert nearly_equal(one, other), each
    # Batches of several texts were formed.
    counted = generate_latest(live.server.metrics.registry).decode().splitlines()
    lines, batches = (
        next(float(line.split()[1]) for line in counted if line.startswith(f"translume_batch_lines_{name} "))
        for name in ("sum", "count")
    )
    assert lines / batches > 1.1
