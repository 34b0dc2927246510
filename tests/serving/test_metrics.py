"""Metrics: surprisal and tokens of every line, times of streams, and refused requests."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.serving.conftest import until

from translume.serving.models import ServedModel
from translume.translator import Translator


def sums(live: Any, name: str) -> tuple[int, float]:
    """Return the count and the sum of a histogram."""
    text = generate_latest(live.server.metrics.registry).decode()
    found = {sample.name: sample.value for each in text_string_to_metric_families(text) for sample in each.samples}
    return int(found[f"{name}_count"]), found[f"{name}_sum"]


def test_the_surprisal_of_every_line_is_counted(start: Callable[..., Any], translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator))
    lines = [f"{chr(97 + number)} bc de" for number in range(7)]
    live.post("/v1/translate", text="\n".join(lines[:-1]), detail=True)
    assert live.post("/v1/translate", text=["", " "]).status == 200
    live.post("/v1/translate", text=lines[-1])
    hypotheses = [translator.translate(line).hypotheses[0] for line in lines]
    expected = sum(-each.log_prob / len(each.tokens) for each in hypotheses)
    assert sums(live, "translume_line_surprise_nats") == (7, pytest.approx(expected, rel=1e-4))


def test_target_tokens_of_files_include_all_hypotheses(start: Callable[..., Any], translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator))

    def counted() -> float:
        return float(live.server.metrics.registry.get_sample_value("translume_target_tokens_total"))

    beside = live.post("/v1/translate", text=["a b", ""], nbest=3, detail=True).json()
    lengths = [len(each["tokens"]) for found in beside["translations"] for each in found["hypotheses"]]
    assert (len(lengths), counted()) == (3, sum(lengths))
    before = counted() + len(translator.translate("a b").hypotheses[0].tokens)
    live.post("/v1/translate/stream", text="a b")
    assert counted() == before
    live.post("/v1/score", sources="a", targets="b")
    assert counted() == before
    text = b'Content-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\na b\nc d\n'
    live.ask("POST", "/v1/files", b"--xx\r\n%b\r\n--xx--\r\n" % text, content_type="multipart/form-data; boundary=xx")
    more = sum(len(translator.translate(line).hypotheses[0].tokens) for line in ("a b", "c d"))
    until(lambda: counted() == before + more)


def test_the_time_to_the_first_event_of_a_stream_is_measured(start: Callable[..., Any], translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator))
    live.post("/v1/translate", text="a")
    assert sums(live, "translume_first_event_seconds") == (0, 0.0)
    live.post("/v1/translate/stream", text="a b c")
    count, seconds = sums(live, "translume_first_event_seconds")
    assert count == 1
    assert 0 < seconds < 30


def test_refused_requests_are_counted_by_error_code(start: Callable[..., Any], translator: Translator) -> None:
    live = start(ServedModel.from_model("en-de", translator), characters=5)
    live.post("/v1/translate", text="a" * 6)
    wanted = b'translume_requests_total{code="text_too_long",route="/v1/translate",status="413"} 1.0'
    until(lambda: wanted in generate_latest(live.server.metrics.registry))
