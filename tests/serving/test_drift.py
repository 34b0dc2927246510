"""Drift metrics: surprisal of every line comes from its response, entropy of a sample of lines from a trace."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from translume.inspection import trace
from translume.serving import metrics
from translume.serving.metrics import ENTROPY_SAMPLE, DriftMonitor, Metrics
from translume.serving.workers.models import Served
from translume.serving.workers.work import Translating
from translume.translator import Translator


def sums(live: Any, name: str) -> tuple[int, float]:
    """Return the count and the sum of a histogram."""
    text = live.server.metrics.text().decode()
    found = {sample.name: sample.value for each in text_string_to_metric_families(text) for sample in each.samples}
    return int(found[f"{name}_count"]), found[f"{name}_sum"]


def until(true: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 120
        time.sleep(0.005)


def test_every_line_is_counted_and_a_sample_is_traced(start: Callable[..., Any], translator: Translator) -> None:
    live = start(Served.of("en-de", translator))
    lines = [f"{chr(97 + number % 23)} bc de" for number in range(ENTROPY_SAMPLE)]
    answer = live.post("/v1/translate", text="\n".join(lines[:-1]), detail=True).json()
    assert sums(live, "translume_step_entropy_nats") == (0, 0.0)
    assert live.post("/v1/translate", text=["", " "]).status == 200
    live.post("/v1/translate", text=lines[-1])
    until(lambda: sums(live, "translume_step_entropy_nats")[0] > 0)
    found = [translator.translate(line).hypotheses[0] for line in lines]
    expected = sum(-each.log_prob / len(each.tokens) for each in found)
    assert sums(live, "translume_line_surprise_nats") == (ENTROPY_SAMPLE, pytest.approx(expected, rel=1e-4))
    steps = trace(translator, lines[-1], found[-1], k=1, show=()).steps
    count, total = sums(live, "translume_step_entropy_nats")
    assert (count, total) == (len(steps), pytest.approx(sum(step.entropy for step in steps), rel=1e-3))
    assert len(answer["translations"][0]["hypotheses"]) == 1


def test_tracing_takes_one_percent_of_the_time(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, traced = [1000.0], list[str]()

    def slowly(source: str, *_: object) -> list[float]:
        traced.append(source)
        clock[0] += 0.5
        return [1.0]

    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    slow: Any = SimpleNamespace(checkpoint=translator.checkpoint, entropies=slowly)
    background = SimpleNamespace(run_if_idle=lambda do: do(lambda: None))
    monitor = DriftMonitor(Metrics(lambda: 0, 1), background)  # type: ignore[arg-type]  # runs jobs immediately
    for seconds, source in enumerate(("a", "b", "c")):
        done: list[Future[Any]] = [Future() for _ in range(ENTROPY_SAMPLE)]
        monitor.watch(Translating(slow, translator.config.decoding), done)
        translation = translator.translate(source)
        for future in done:
            future.set_result(translation)
        clock[0] = 1000.0 + 49.9 * (seconds + 1)
    assert traced == ["a", "c"]


def test_target_tokens_of_files_include_all_hypotheses(start: Callable[..., Any], translator: Translator) -> None:
    live = start(Served.of("en-de", translator))

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
    live = start(Served.of("en-de", translator))
    live.post("/v1/translate", text="a")
    assert sums(live, "translume_first_event_seconds") == (0, 0.0)
    live.post("/v1/translate/stream", text="a b c")
    count, seconds = sums(live, "translume_first_event_seconds")
    assert count == 1
    assert 0 < seconds < 30


def test_refused_requests_are_counted_by_error_code(start: Callable[..., Any], translator: Translator) -> None:
    live = start(Served.of("en-de", translator), characters=5)
    live.post("/v1/translate", text="a" * 6)
    wanted = b'translume_requests_total{code="text_too_long",route="/v1/translate",status="413"} 1.0'
    until(lambda: wanted in live.server.metrics.text())
