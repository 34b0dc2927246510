"""What Prometheus is told: labels are routes, statuses and codes, never texts, addresses or keys."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from translume.serving.port_error import port_error
from translume.serving.workers.scheduler import BatchDone
from translume.translator import Translation

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
NATS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts of one server."""

    def __init__(self, waiting: Callable[[], int], batch_tokens: int) -> None:
        """waiting: how many lines wait now.  batch_tokens: the budget of a batch."""
        self.registry = CollectorRegistry()
        self._budget = batch_tokens
        self._requests = Counter(
            "translume_requests", "Requests answered.", ["route", "status", "code"], registry=self.registry
        )
        self._seconds = Histogram(
            "translume_request_seconds",
            "From a request's head to the end of its answer.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first = Histogram(
            "translume_first_event_seconds",
            "From the head of a request for a stream to its first event.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.open = Gauge("translume_requests_open", "Requests that are being answered.", registry=self.registry)
        Gauge("translume_queue_lines", "Lines that wait.", registry=self.registry).set_function(waiting)
        self._waited = Histogram(
            "translume_queue_seconds", "Time of a line in the queue.", buckets=SECONDS, registry=self.registry
        )
        self._work = Histogram("translume_batch_seconds", "Time of a batch.", buckets=SECONDS, registry=self.registry)
        self._texts = Histogram("translume_batch_lines", "Lines in a batch.", buckets=ITEMS, registry=self.registry)
        self._fill = Histogram(
            "translume_batch_fill",
            "Tokens of a batch, as a share of its budget.",
            buckets=[tenth / 10 for tenth in range(1, 11)],
            registry=self.registry,
        )
        self.surprise = Histogram(
            "translume_line_surprise_nats",
            "Mean of -log p_model over the tokens of a line's translation.",
            buckets=NATS,
            registry=self.registry,
        )
        self.entropy = Histogram(
            "translume_step_entropy_nats",
            "Entropy of p_model at each step of some lines.",
            buckets=NATS,
            registry=self.registry,
        )
        self.workers_lost = Counter(
            "translume_workers_lost", "Worker processes that ended and were replaced.", registry=self.registry
        )
        self._tokens = Counter("translume_source_tokens", "Source tokens worked on.", registry=self.registry)
        self._target_tokens = Counter(
            "translume_target_tokens",
            "Target tokens of all hypotheses that translations came with, end marks counted.",
            registry=self.registry,
        )

    def answered(self, route: str, status: int, code: str, seconds: float) -> None:
        """Count a request.  route: a template, not a path.  code: of an error; empty for none."""
        self._requests.labels(route, str(status), code).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, done: BatchDone) -> None:
        """Count a batch."""
        for seconds in done.waited:
            self._waited.observe(seconds)
        self._work.observe(done.seconds)
        self._texts.observe(done.items)
        self._fill.observe(done.tokens / self._budget)
        self._tokens.inc(done.tokens)

    def watch(self, futures: "Sequence[Future[Any]]") -> None:
        """Count what comes of work, if that is translations."""
        for future in futures:
            future.add_done_callback(self._translated)

    def _translated(self, future: "Future[Any]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if isinstance(found := future.result(), Translation):
            self._target_tokens.inc(sum(len(each.tokens) for each in found.hypotheses))

    @contextmanager
    def offered(self, host: str, port: int) -> Iterator[int]:
        """Offer all of it at /metrics of a port of its own, which comes out; PortError where that is not free."""
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
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry)
