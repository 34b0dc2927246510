"""Load test of the server: goodput at up to five times its capacity, and a comparison with simpler servers.

The capacity is the throughput of 64 closed-loop clients. Then requests arrive at random times, at 0.5, 1, 2 and 5 times
the capacity, without waiting for responses. Goodput is the number of lines per second in responses with status 200,
within the deadline and with the correct text: the one that the one-request-at-a-time server returns for it alone.
Then 32 clients use, in turns, our server, a server that processes one request at a time (its lines in one batch), and
a server with one call per sentence, all with the same model, engine and threads. If a model is given and CTranslate2 is
installed, also a server with one CTranslate2 call per sentence and the same weights, as in LibreTranslate (its texts
are not compared).

Then 16 clients use ours, and 15 and one that streams, in turns: p50 of those that do not stream, and the time to the
first event of the one that does.

The clients run in a separate process (`_serve_load_clients.py`). Its processor time and the machine's load are printed.
Requests have 1 line (60 %), 2 to 4 (30 %), or 8 (10 %).

    python benchmarks/serve_load.py [MODEL SOURCE] [--seconds 10] [--soak 0] [--rounds 2] [--only-stream] [--json]

Without a model: a small one with random weights, and random lines. `--soak SECONDS` at 1.0 times the capacity, at the
end, measures the growth of memory. `--only-stream` measures only the clients beside one that streams.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from select import select
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
HERE = Path(__file__).resolve().parent
PEERS = ("one request at a time", "one sentence a call")
CTRANSLATE2 = "one sentence a call by CTranslate2"
CLIENTS, ASKING = 32, 64
SPEEDS = {"goodput_lines_per_second": "at_32_clients_to", "lines_per_processor_second": "by_processor_time_to"}
"""The comparisons and the names of their ratios; the second depends less on other load of the machine."""
DEADLINE_SECONDS, SILENT_SECONDS = 10.0, 120.0


class Server:
    """A server in a separate process."""

    def __init__(self, kind: str, options: argparse.Namespace) -> None:
        limits = {"queue": options.queue, "lines": 64, "texts": 16, "timeout_seconds": DEADLINE_SECONDS,
                  "lanes": options.lanes}  # fmt: skip
        command = [sys.executable, str(HERE / "_serve_load_servers.py"), kind, options.model or "-", options.engine,
                   str(options.threads), json.dumps(limits)]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "TOKENIZERS_PARALLELISM": "false"}
        self.kind = kind
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.port = self._answer()["port"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        there = select([self.process.stdout], [], [], SILENT_SECONDS)[0]
        line = self.process.stdout.readline() if there else ""
        if not line:
            self.process.kill()
            raise SystemExit(f"serve_load: the server '{self.kind}' {'died' if there else 'does not answer'}")
        return dict(json.loads(line))

    def counts(self) -> dict[str, Any]:
        """Return its memory, processor time and batches."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Load:
    """Requests of mixed lengths, and the correct responses once they are known."""

    def __init__(self, lines: list[str], count: int) -> None:
        draw = random.Random(11)
        self.texts = [
            ["\n".join(draw.sample(lines, draw.choice([1] * 12 + [2, 2, 3, 3, 4, 4] + [8] * 2)))] for _ in range(count)
        ]
        self.bodies = [
            json.dumps({"text": text, "timeout_seconds": DEADLINE_SECONDS}, ensure_ascii=False) for text in self.texts
        ]
        self.lines = [text[0].count("\n") + 1 for text in self.texts]
        self.right: list[list[str]] = []

    def ask_alone(self, server: Server) -> None:
        """Collect the correct responses, one request after another."""
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SILENT_SECONDS)
        for body in self.bodies:
            connection.request("POST", "/v1/translate", body.encode(), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
            self.right.append([each["text"] for each in answer["translations"]])
        connection.close()

    def put_on(self, server: Server, seconds: float, **how: float) -> dict[str, Any]:
        """Run the load and return the counts.  how: clients, or rate and settle."""
        before, begun = server.counts(), time.monotonic()
        right = [] if server.kind == CTRANSLATE2 else self.right
        plan = {
            "port": server.port, "path": "/v1/translate", "bodies": self.bodies, "lines": self.lines,
            "right": right, "seconds": seconds, "seed": 5, "settle": min(3.0, seconds / 2), **how,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(HERE / "_serve_load_clients.py")],
            input=json.dumps(plan), capture_output=True, text=True, check=True, timeout=2 * seconds + SILENT_SECONDS,
        )  # fmt: skip
        after = server.counts()
        found: dict[str, Any] = json.loads(done.stdout)
        found["mebibytes"] = after["mebibytes"]
        busy = after["processor_seconds"] - before["processor_seconds"]
        found["lines_per_processor_second"] = found["lines_answered"] / busy
        found["server_processor_share"] = busy / (time.monotonic() - begun)
        batches = after.get("translume_batch_lines_count", 0) - before.get("translume_batch_lines_count", 0)
        if batches:
            for name in ("fill", "lines"):
                total = after[f"translume_batch_{name}_sum"] - before[f"translume_batch_{name}_sum"]
                found[f"batch_{name}"] = total / batches
        return found


def at_loads(server: Server, load: Load, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per load, the capacity first."""
    rows = [{"load": "capacity", **load.put_on(server, options.seconds, clients=ASKING)}]
    if not options.json:
        show(rows, headings=True)
    capacity = rows[0]["answers_per_second"]
    for factor in options.loads:
        found = load.put_on(server, options.seconds, rate=factor * capacity)
        rows.append({"load": f"{factor:g}x", **found})
        if not options.json:
            show(rows[-1:], headings=False)
    return rows


COLUMNS = (
    ("load", "load", 10, ""),
    ("sent/s", "sent_per_second", 8, ".1f"),
    ("lines/s", "goodput_lines_per_second", 8, ".1f"),
    ("/cpu s", "lines_per_processor_second", 7, ".1f"),
    ("p50 s", "p50_seconds", 7, ".3f"),
    ("p99 s", "p99_seconds", 7, ".3f"),
    ("refused", "refused", 8, ""),
    ("their p50", "refused_p50_seconds", 10, ".4f"),
    ("p99", "refused_p99_seconds", 7, ".4f"),
    ("fill", "batch_fill", 6, ".2f"),
    ("lines", "batch_lines", 6, ".1f"),
    ("MiB", "mebibytes", 6, ".0f"),
    ("late", "late", 5, ""),
    ("wrong", "wrong", 6, ""),
    ("failed", "failed", 7, ""),
    ("unsent", "unsent", 7, ""),
    ("server", "server_processor_share", 7, ".0%"),
    ("clients", "clients_processor_share", 8, ".0%"),
)
"""Columns: heading, name in a row, width, format. The last are processor shares: of the server with its worker, of its
process that handles requests, and of the clients."""


def show(rows: list[dict[str, Any]], *, headings: bool) -> None:
    if headings:
        print("".join(f"{heading:>{width}}" for heading, _, width, _ in COLUMNS))
    for row in rows:
        cells = ((row.get(name), width, form) for _, name, width, form in COLUMNS)
        print("".join(f"{'–' if value is None else format(value, form):>{width}}" for value, width, form in cells))
    sys.stdout.flush()


def compared(servers: dict[str, Server], load: Load, options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return the results of 32 clients with each server, in turns."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in servers}
    for _ in range(options.rounds):
        for kind, server in servers.items():
            found[kind].append(load.put_on(server, options.seconds, clients=CLIENTS))
    return found


def beside_a_stream(server: Server, load: Load, options: argparse.Namespace) -> dict[str, float]:
    """Return medians over the rounds: p50 of plain clients alone and beside one that streams, and its first event."""
    speed = "lines_per_processor_second"
    alone, beside = [], []
    for _ in range(options.rounds):
        alone.append(load.put_on(server, options.seconds, clients=16))
        beside.append(load.put_on(server, options.seconds, clients=15, streams=1))
    return {
        "p50_seconds_of_16_clients": statistics.median(each["p50_seconds"] for each in alone),
        "p50_seconds_beside_a_stream": statistics.median(each["p50_seconds"] for each in beside),
        "p50_seconds_first_event": statistics.median(each["first_p50_seconds"] or math.inf for each in beside),
        "lines_per_processor_second_of_16_clients": statistics.median(each[speed] for each in alone),
        "lines_per_processor_second_beside_a_stream": statistics.median(each[speed] for each in beside),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0 if SHORT else 10.0, help="duration of each load")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1, 2, 5])
    parser.add_argument("--soak", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 2)
    parser.add_argument("--requests", type=int, default=12 if SHORT else 120, help="number of different requests")
    parser.add_argument("--engine", choices=["fast", "plain"], default="fast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=1, help="searches at a time of our server")
    parser.add_argument("--queue", type=int, default=256, help="maximum number of lines in the queue")
    parser.add_argument("--only-stream", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.model and not options.source:
        parser.error("expected MODEL SOURCE")
    if options.source:
        lines = [line for line in options.source.read_text("utf-8").splitlines()[:1000] if line.strip()]
    else:
        draw = random.Random(3)
        lines = [" ".join("".join(draw.choices("abcdefgh", k=4)) for _ in range(draw.randint(1, 6))) for _ in range(99)]
    if options.only_stream:
        server, load = Server("ours", options), Load(lines, options.requests)
        load.put_on(server, min(2.0, options.seconds), clients=8)  # warm up
        streaming = beside_a_stream(server, load, options)
        server.stop()
        lines = [f"{name.replace('_', ' ')}: {value:.4g}" for name, value in streaming.items()]
        print(json.dumps(streaming) if options.json else "\n".join(lines))
        return
    busy = [os.getloadavg()[0]]
    peers = PEERS if options.model is None or find_spec("ctranslate2") is None else (*PEERS, CTRANSLATE2)
    servers = {kind: Server(kind, options) for kind in ("ours", *peers)}
    load = Load(lines, options.requests)
    load.ask_alone(servers[PEERS[0]])
    load.put_on(servers["ours"], min(2.0, options.seconds), clients=8)  # warm up
    rows = at_loads(servers["ours"], load, options)
    taken = compared(servers, load, options)
    streaming = beside_a_stream(servers["ours"], load, options)
    if options.soak:
        rate = rows[0]["answers_per_second"]
        rows.append({"load": "soak 1x", **load.put_on(servers["ours"], options.soak, rate=rate)})
        if not options.json:
            show(rows[-1:], headings=False)
    for server in servers.values():
        server.stop()
    busy.append(os.getloadavg()[0])
    best = max(row["goodput_lines_per_second"] for row in rows)
    highest = next(row for row in reversed(rows) if row["load"].endswith("x") and "soak" not in row["load"])
    medians = {
        name: {kind: statistics.median(each[name] for each in found) for kind, found in taken.items()}
        for name in SPEEDS
    }
    result = {
        "rows": rows,
        "goodput_share_of_peak_at_highest_load": highest["goodput_lines_per_second"] / best,
        "the_same_by_processor_time": highest["lines_per_processor_second"]
        / max(row["lines_per_processor_second"] for row in rows),
        "memory_growth": rows[-1]["mebibytes"] / rows[0]["mebibytes"] - 1,
        "of_32_clients": {
            kind: {name: [each[name] for each in found] for name in SPEEDS} for kind, found in taken.items()
        },
        **{
            f"ratio_{label}_{kind.replace(' ', '_')}": medians[name]["ours"] / medians[name][kind]
            for name, label in SPEEDS.items()
            for kind in peers
        },
        **streaming,
        "machine_load_before_and_after": busy,
        "processors": len(os.sched_getaffinity(0)),
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"\ngoodput at the highest load: {result['goodput_share_of_peak_at_highest_load']:.0%} of the best")
    print(f"the same by lines per second of its processor time: {result['the_same_by_processor_time']:.0%}")
    print(f"memory, from the first to the last row: {result['memory_growth']:+.1%}")
    for kind, found in taken.items():
        wall, own = ([f"{each[name]:.1f}" for each in found] for name in SPEEDS)
        print(
            f"{CLIENTS} clients, {kind}: {', '.join(wall)} lines/s; {', '.join(own)} per second of its processor time"
        )
    for name, value in result.items():
        if name.startswith("ratio"):
            print(f"{name.replace('_', ' ')}: {value:.2f}")
    for name, value in streaming.items():
        print(f"{name.replace('_', ' ')}: {value:.4g}")
    print(f"the machine's load before and after: {busy[0]:.1f}, {busy[1]:.1f} on {result['processors']} processors")


if __name__ == "__main__":
    main()
