"""Metrics for Prometheus. Labels are routes, statuses and error codes, never texts, addresses or keys.

One of them detects drift, text that the model does not know: the surprisal of the tokens that it generates.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from translume.serving.run import port_error
from translume.translator import Translation

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
NATS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 8)
ITEMS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TENTHS: Final = tuple(tenth / 10 for tenth in range(1, 11))


class Metrics:
    """The metrics of one server."""

    def __init__(self, batch_tokens: int) -> None:
        """batch_tokens: the token budget of a batch."""
        self.registry = CollectorRegistry()
        self._budget = batch_tokens
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry, multiprocess_mode="livesum")  # of all running processes
        self._requests = counter(
            "translume_requests", "Requests answered, by route, status and error code.", ["route", "status", "code"]
        )
        text = "Time from the request's headers to the end of the response."
        self._seconds = histogram("translume_request_seconds", text, ["route"], buckets=SECONDS)
        text = "Time from the headers of a streaming request to its first event."
        self.first = histogram("translume_first_event_seconds", text, buckets=SECONDS)
        self.open = gauge("translume_requests_open", "Requests in progress.")
        self._queue = gauge("translume_queue_lines", "Lines in the queue.")
        text = "Time that a line waits in the queue."
        self._waited = histogram("translume_queue_seconds", text, buckets=SECONDS)
        text = "Lines in a batch, each time that some enter it."
        self._lines = histogram("translume_batch_lines", text, buckets=ITEMS)
        text = "Tokens of a batch as a share of the budget, each time that lines enter it."
        self._fill = histogram("translume_batch_fill", text, buckets=TENTHS)
        text = "Surprisal: mean of -log p_model over the tokens of a line's translation."
        self._surprise = histogram("translume_line_surprise_nats", text, buckets=NATS)
        self._tokens = counter("translume_source_tokens", "Source tokens processed.")
        text = "Target tokens of all returned hypotheses, including end tokens."
        self._target_tokens = counter("translume_target_tokens", text)

    def count_request(self, route: str, status: int, code: str, seconds: float) -> None:
        """Count a request.  route: a path template.  code: of the error; empty for success."""
        self._requests.labels(route, str(status), code).inc()
        self._seconds.labels(route).observe(seconds)

    def count_waiting(self, items: int) -> None:
        """Count the lines in the queue."""
        self._queue.set(items)

    def count_entered(self, waited: Sequence[float], tokens: int, items_running: int, tokens_running: int) -> None:
        """Count lines that entered a batch.  waited: seconds of each in the queue.  tokens: of them.

        items_running, tokens_running: of their batch, with them.
        """
        for seconds in waited:
            self._waited.observe(seconds)
        self._lines.observe(items_running)
        self._fill.observe(tokens_running / self._budget)
        self._tokens.inc(tokens)

    def watch(self, futures: "Sequence[Future[Any]]") -> None:
        """Count the target tokens and the surprisal of the futures whose results are translations."""
        for future in futures:
            future.add_done_callback(self._count_translation)

    def _count_translation(self, future: "Future[Any]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        if not isinstance(translation := future.result(), Translation) or not translation.hypotheses:
            return
        self._target_tokens.inc(sum(len(each.tokens) for each in translation.hypotheses))
        best = translation.hypotheses[0]
        if math.isfinite(best.log_prob):
            self._surprise.observe(-best.log_prob / max(1, len(best.tokens)))


class SummedMetrics:
    """The metrics of several processes, which count in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.registry = CollectorRegistry()
        MultiProcessCollector(self.registry, self._folder)  # type: ignore[no-untyped-call]  # prometheus_client has no type here
        self.workers_lost = Counter(
            "translume_workers_lost", "Worker processes that crashed and were replaced.", registry=self.registry
        )

    def remove(self, pid: int) -> None:
        """Drop what is in progress in a process that has ended. What it has counted stays."""
        mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]  # prometheus_client has no type here


@contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serve /metrics on a port of its own, and yield that port. Raises PortError if it cannot be bound."""
    try:
        listener, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise port_error(host, port, error, "--metrics") from None
    try:
        yield listener.server_port
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
