"""Metrics for Prometheus. Labels are routes, statuses and error codes, never texts, addresses or keys.

Two of them detect drift, text that the model does not know: the surprisal of the tokens it generates, which the search
has computed already, and for a sample of lines the entropy of the predicted distribution at each step.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from translume.serving.background import BackgroundExecutor
from translume.serving.run import port_error
from translume.serving.workers.scheduler import BatchDone, Work
from translume.serving.workers.work import Translating
from translume.translator import TextHypothesis, Translation

ENTROPY_SAMPLE: Final = 64
"""One line in this many is traced for its entropy."""
ENTROPY_SHARE: Final = 0.01
"""Largest share of time spent on traces."""
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
NATS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8)
ITEMS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server."""

    def __init__(self, waiting: Callable[[], int], batch_tokens: int) -> None:
        """waiting: returns the number of lines in the queue.  batch_tokens: the token budget of a batch."""
        self.registry = CollectorRegistry()
        self._budget = batch_tokens
        self._requests = Counter(
            "translume_requests",
            "Requests answered, by route, status and error code.",
            ["route", "status", "code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "translume_request_seconds",
            "Time from the request's headers to the end of the response.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first = Histogram(
            "translume_first_event_seconds",
            "Time from the headers of a streaming request to its first event.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.open = Gauge("translume_requests_open", "Requests in progress.", registry=self.registry)
        Gauge("translume_queue_lines", "Lines in the queue.", registry=self.registry).set_function(waiting)
        self._waited = Histogram(
            "translume_queue_seconds", "Time that a line waits in the queue.", buckets=SECONDS, registry=self.registry
        )
        self._work = Histogram(
            "translume_batch_seconds", "Processing time of a batch.", buckets=SECONDS, registry=self.registry
        )
        self._texts = Histogram("translume_batch_lines", "Lines in a batch.", buckets=ITEMS, registry=self.registry)
        self._fill = Histogram(
            "translume_batch_fill",
            "Tokens of a batch as a share of the budget.",
            buckets=[tenth / 10 for tenth in range(1, 11)],
            registry=self.registry,
        )
        self.surprise = Histogram(
            "translume_line_surprise_nats",
            "Surprisal: mean of -log p_model over the tokens of a line's translation.",
            buckets=NATS,
            registry=self.registry,
        )
        self.entropy = Histogram(
            "translume_step_entropy_nats",
            "Entropy of p_model at each step, for a sample of lines.",
            buckets=NATS,
            registry=self.registry,
        )
        self.workers_lost = Counter(
            "translume_workers_lost", "Worker processes that crashed and were replaced.", registry=self.registry
        )
        self._tokens = Counter("translume_source_tokens", "Source tokens processed.", registry=self.registry)
        self._target_tokens = Counter(
            "translume_target_tokens",
            "Target tokens of all returned hypotheses, including end tokens.",
            registry=self.registry,
        )

    def count_request(self, route: str, status: int, code: str, seconds: float) -> None:
        """Count a request.  route: a path template.  code: of the error; empty for success."""
        self._requests.labels(route, str(status), code).inc()
        self._seconds.labels(route).observe(seconds)

    def count_batch(self, done: BatchDone) -> None:
        """Count a batch."""
        for seconds in done.waited:
            self._waited.observe(seconds)
        self._work.observe(done.seconds)
        self._texts.observe(done.items)
        self._fill.observe(done.tokens / self._budget)
        self._tokens.inc(done.tokens)

    def watch(self, futures: "Sequence[Future[Any]]") -> None:
        """Count the target tokens of the futures whose results are translations."""
        for future in futures:
            future.add_done_callback(self._count_target_tokens)

    def _count_target_tokens(self, future: "Future[Any]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if isinstance(found := future.result(), Translation):
            self._target_tokens.inc(sum(len(each.tokens) for each in found.hypotheses))

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Serve /metrics on a separate port, and yield that port. Raises PortError if it cannot be bound."""
        try:
            listener, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise port_error(host, port, error, "--metrics") from None
        try:
            yield listener.server_port
        finally:
            listener.shutdown()
            listener.server_close()
            thread.join()

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class DriftMonitor:
    """Observes translations as they finish, for the two drift metrics."""

    def __init__(self, metrics: Metrics, background: BackgroundExecutor) -> None:
        self._metrics, self._background = metrics, background
        self._lines = itertools.count(1)
        self._next_trace = 0.0

    def watch(self, work: Work, futures: "Sequence[Future[Any]]") -> None:
        """Observe the results of translation work; other work is ignored."""
        if isinstance(work, Translating):
            for future in futures:
                future.add_done_callback(partial(self._done, work))

    def _done(self, work: Translating, future: "Future[Translation]") -> None:
        if future.cancelled() or future.exception() is not None or not future.result().hypotheses:
            return
        translation = future.result()
        best = translation.hypotheses[0]
        if math.isfinite(best.log_prob):
            self._metrics.surprise.observe(-best.log_prob / max(1, len(best.tokens)))
        if not translation.source:  # it was a file, and traces are of texts
            return
        if next(self._lines) % ENTROPY_SAMPLE or time.monotonic() < self._next_trace:
            return
        # A translation that was joined from parts has several end tokens and cannot be traced.
        if best.ids.count(work.translator.checkpoint.target_tokenizer.specials.eos) <= 1:
            self._background.run_if_idle(lambda _: self._entropy(work, translation.source, best))

    def _entropy(self, work: Translating, source: str, best: TextHypothesis) -> None:
        started = time.monotonic()
        for entropy in work.translator.entropies(source, best, work.settings):
            self._metrics.entropy.observe(entropy)
        self._next_trace = started + (time.monotonic() - started) / ENTROPY_SHARE
