"""Load clients of `serve_load.py`, in a separate process without torch, with request bodies built in advance.

Standard input is one JSON object: the server's address, the request bodies, the expected responses, and the number of
clients or the request rate. Standard output is one JSON object with the counts.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

MAX_CONNECTIONS = 480
"""Most open connections. Requests that are due beyond it are counted and not sent: a limit of the clients."""
REFUSED_SECONDS = 0.5
"""Pause of a closed-loop client after a refusal; Retry-After asks for a second or more."""


@dataclass
class Seen:
    """Counts of the requests that were sent in the measured window."""

    good: list[tuple[float, float, int]] = field(default_factory=list)  # arrival time, seconds, lines
    refused: list[float] = field(default_factory=list)
    late: int = 0
    wrong: int = 0
    failed: int = 0
    unsent: int = 0
    sent: int = 0
    answered: int = 0  # lines, in the window or not
    firsts: list[tuple[float, float]] = field(default_factory=list)  # arrival time of streams' first events, seconds
    window: float = 0.0


class Clients:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.port, self.path = plan["port"], plan["path"]
        self.bodies = [
            (
                f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
            )
            for body in plan["bodies"]
        ]
        self.lines, self.right = plan["lines"], plan["right"]
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.used = 0
        self.seen = Seen()
        self.draw = random.Random(plan["seed"])

    async def ask(self, number: int, counts: bool) -> int:
        """Send a body, record the response and return its status.  counts: whether it is in the measured window."""
        begun = time.perf_counter()
        while self.idle and self.idle[-1][0].at_eof():
            # The server closes connections that are idle for some seconds.
            self.idle.pop()[1].close()
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.bodies[number])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self.seen.failed += 1
            writer.close()
            return 0
        now = time.perf_counter()
        self.idle.append((reader, writer))
        status = int(head[9:12])
        if status == 200:
            if self.right and [each["text"] for each in json.loads(body)["translations"]] != self.right[number]:
                self.seen.wrong += 1
            self.seen.good.append((now, now - begun, self.lines[number]))
        elif status == 503 and counts:
            self.seen.refused.append(now - begun)
        elif status == 504:
            self.seen.late += 1
        return status

    async def follow(self, number: int) -> None:
        """Send a body to the streaming path, and record when the first event arrives."""
        begun = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.bodies[number].replace(self.path.encode(), f"{self.path}/stream".encode(), 1))
        await reader.readuntil(b"event: ")
        self.seen.firsts.append((time.perf_counter(), time.perf_counter() - begun))
        await reader.readuntil(b"event: done")
        writer.close()

    async def closed(self, clients: int, streams: int, seconds: float, settle: float) -> None:
        """Run a closed loop: each client sends its next request after a response. Measures after `settle` seconds.

        streams: clients that stream, besides the others.
        """
        begun = time.perf_counter()
        end = begun + settle + seconds

        async def client() -> None:
            while (now := time.perf_counter()) < end:
                self.seen.sent += now > begun + settle
                if await self.ask(self.draw.randrange(len(self.bodies)), now > begun + settle) == 503:
                    await asyncio.sleep(REFUSED_SECONDS)

        async def streaming() -> None:
            while time.perf_counter() < end:
                await self.follow(self.draw.randrange(len(self.bodies)))

        await asyncio.gather(*(client() for _ in range(clients)), *(streaming() for _ in range(streams)))
        self._count(begun + settle, end)

    async def offered(self, rate: float, seconds: float, settle: float) -> None:
        """Run an open loop: requests at random times, `rate` per second. Measures after `settle` seconds."""
        begun = time.perf_counter()
        due, tasks = begun, set[asyncio.Task[int]]()
        while due < begun + settle + seconds:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            counts = due > begun + settle
            self.seen.sent += counts
            if len(tasks) >= MAX_CONNECTIONS:
                self.seen.unsent += counts
            else:
                task = asyncio.ensure_future(self.ask(self.draw.randrange(len(self.bodies)), counts))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            due += self.draw.expovariate(rate)
        end = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._count(begun + settle, end)

    def _count(self, begin: float, end: float) -> None:
        self.seen.answered = sum(lines for _, _, lines in self.seen.good)
        self.seen.good = [each for each in self.seen.good if begin <= each[0] <= end]
        self.seen.firsts = [each for each in self.seen.firsts if begin <= each[0] <= end]
        self.seen.window = end - begin


async def run(plan: dict[str, Any]) -> dict[str, Any]:
    clients = Clients(plan)
    processor = time.process_time()
    wall = time.perf_counter()
    if plan.get("clients"):
        await clients.closed(plan["clients"], plan.get("streams", 0), plan["seconds"], plan["settle"])
    else:
        await clients.offered(plan["rate"], plan["seconds"], plan["settle"])
    for _, writer in clients.idle:
        writer.close()
    seen = clients.seen
    waits = sorted(seconds for _, seconds, _ in seen.good)
    refusals = sorted(seen.refused)
    firsts = sorted(seconds for _, seconds in seen.firsts)
    window = seen.window

    def at(values: list[float], share: float) -> float | None:
        return values[min(len(values) - 1, int(share * len(values)))] if values else None

    return {
        "goodput_lines_per_second": sum(lines for _, _, lines in seen.good) / window,
        "lines_answered": seen.answered,
        "answers_per_second": len(seen.good) / window,
        "sent_per_second": seen.sent / window,
        "p50_seconds": at(waits, 0.5),
        "p99_seconds": at(waits, 0.99),
        "first_p50_seconds": at(firsts, 0.5),
        "refused": len(refusals),
        "refused_p50_seconds": at(refusals, 0.5),
        "refused_p99_seconds": at(refusals, 0.99),
        "late": seen.late,
        "wrong": seen.wrong,
        "failed": seen.failed,
        "unsent": seen.unsent,
        "clients_processor_share": (time.process_time() - processor) / (time.perf_counter() - wall),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(json.loads(sys.stdin.read())))))
