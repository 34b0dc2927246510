"""Attack a server of a model, and measure what another client notices.

    python benchmarks/attack_server.py MODEL [--only NAME …] [--json] [--draw N [--seed N]]

For each attack: the statuses of the attacker's responses, the longest wait of a client at another address (one short
translation, and one health check, after the other), its failures, and the largest memory of the process that answers
and of all processes. The server runs with its default limits on this machine, so processor time is shared with the
attacker.
"""

import argparse
import http.client
import io
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

ATTACKER, VICTIM = "127.0.0.3", "127.0.0.2"
WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
Statuses = Counter[str]
Attack = Callable[["Target"], Statuses]
ATTACKS: dict[str, Attack] = {}


class Target:
    """A server in a process of its own."""

    def __init__(self, model: str, folder: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = (folder / "log").open("w+")
        # Addresses of this machine are clients here, not proxies.
        words = [f"m={model}", f"--port={self.port}", "--host=0.0.0.0", "--set=proxies=[]", *options]
        self.process = subprocess.Popen([sys.executable, "-m", "translume", "serve", *words], stderr=self.log)
        self.key = ""
        while self.ask("GET", "/health/ready")[0] != "200":
            time.sleep(0.2)

    def ask(
        self, method: str, path: str, body: bytes = b"", address: str = VICTIM, key: str = "", **headers: str
    ) -> tuple[str, bytes]:
        """Return the status, or what went wrong, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90, source_address=(address, 0))
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if key:
            fields["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, path, body, fields)
            found = connection.getresponse()
            return str(found.status), found.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__, b""
        finally:
            connection.close()

    def attack(self, path: str, value: Any, count: int = 1) -> Statuses:
        """Send the same JSON `count` times at once from the attacker's address."""
        body = json.dumps(value).encode() if not isinstance(value, bytes) else value
        return at_once(count, lambda: self.ask("POST", path, body, ATTACKER, content_type="application/json")[0])

    def upload(self, name: str, data: bytes, count: int = 1, path: str = "/v1/files") -> Statuses:
        """Upload a file, and wait until it is translated; the status has its state."""
        edge = "edge0"
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
        body = head.encode() + data + f"\r\n--{edge}--\r\n".encode()
        kind = f"multipart/form-data; boundary={edge}"

        def send() -> str:
            status, answer = self.ask("POST", path, body, ATTACKER, content_type=kind)
            state = {"status": "", **(json.loads(answer) if status == "202" else {})}
            until = time.monotonic() + 60
            while state["status"] in ("waiting", "working") and time.monotonic() < until:
                time.sleep(0.2)
                state = json.loads(self.ask("GET", f"/v1/files/{state['id']}", address=ATTACKER)[1])
            return f"{status} {state['status']}".strip()

        return at_once(count, send)

    def sockets(self, count: int, text: bytes) -> list[socket.socket]:
        """Open connections from many addresses, and send the same bytes through each."""
        opened = []
        for i in range(count):
            with suppress(OSError):
                # One address has few connections, so an attacker of this kind has many addresses.
                address = f"127.1.{i // 100 % 250}.{1 + i // 25000}"
                opened.append(socket.create_connection(("127.0.0.1", self.port), 5, (address, 0)))
                opened[-1].sendall(text)
        return opened

    def memory(self) -> tuple[float, float]:
        """Return MiB of the answering process and of all processes; shared pages count as shares."""
        whole = [pss(pid) for pid in tree(self.process.pid)]
        return whole[0], sum(whole)

    def stop(self) -> int:
        """End the server; return the number of tracebacks in its log."""
        self.process.terminate()
        self.process.wait(60)
        self.log.seek(0)
        return self.log.read().count("Traceback")


def at_once(count: int, task: Callable[[], str]) -> Statuses:
    """Run a task in threads; return its results counted."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(task())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Counter(found)


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            if task.name != str(pid):
                children += (task / "children").read_text().split()
        return [pid, *(each for child in dict.fromkeys(children) for each in tree(int(child)))]
    return [pid]


def pss(pid: int) -> float:
    """Return the memory of a process in MiB; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Watch:
    """What a client notices, and what the processes take."""

    def __init__(self, target: Target) -> None:
        self._target, self._end = target, threading.Event()
        self.waits = {"translation": 0.0, "health": 0.0}
        self.failures: Statuses = Counter()
        self.peak = [0.0, 0.0]

    @contextmanager
    def running(self) -> Iterator[None]:
        body = json.dumps({"text": "The village has many people."}).encode()
        asks = {
            "translation": lambda: self._target.ask(
                "POST", "/v1/translate", body, key=self._target.key, content_type="application/json"
            )[0],
            "health": lambda: self._target.ask("GET", "/health/live")[0],
        }
        threads = [threading.Thread(target=self._repeat, args=(name, ask)) for name, ask in asks.items()]
        threads.append(threading.Thread(target=self._weigh))
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        yield
        time.sleep(0.5)
        self._end.set()
        for thread in threads:
            thread.join()

    def _repeat(self, name: str, ask: Callable[[], str]) -> None:
        while not self._end.wait(0.05):
            started = time.monotonic()
            status = ask()
            self.waits[name] = max(self.waits[name], time.monotonic() - started)
            if status != "200":
                self.failures[f"{name} {status}"] += 1

    def _weigh(self) -> None:
        while not self._end.wait(0.1):
            self.peak = [max(old, new) for old, new in zip(self.peak, self._target.memory(), strict=True)]


def attack(name: str) -> Callable[[Attack], Attack]:
    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return add


def zipped(**parts: bytes) -> bytes:
    """Return an archive.  parts: by path, with `__` for `/` and a single `_` for a point."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in parts.items():
            archive.writestr(path.replace("__", "/").replace("_", "."), data)
    return held.getvalue()


def docx(inner: bytes) -> bytes:
    text = f'<w:document xmlns:w="{WORD}"><w:body>'.encode() + inner + b"</w:body></w:document>"
    return zipped(word__document_xml=text)


# Attacks whose inputs are drawn: valid ones whose structure was changed, from a seed that is printed.


def changed_numbers(content: bytes, random: Random, first: int = 0, last: int = 64) -> bytes:
    """Return a file with some of the numbers in its header replaced by extreme ones."""
    found = bytearray(content)
    for _ in range(random.randint(1, 3)):
        size = random.choice((1, 2, 4, 8))
        place = random.randrange(first, max(first + 1, min(last, len(found) - size)))
        value = random.choice(
            (0, 1, 2, 15_999, 767_999, 0x7FFFF000, 0x80000000, 2 ** (8 * size) - 1, random.getrandbits(32))
        )
        found[place : place + size] = (value % 2 ** (8 * size)).to_bytes(size, random.choice(("little", "big")))
    return bytes(found)


def recording(random: Random) -> tuple[str, bytes]:
    import numpy as np
    import soundfile

    kind, subtype = random.choice(
        (("WAV", None), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None), ("AIFF", None), ("W64", None))
    )
    rate = random.choice((8000, 16_000, 44_100, 48_000))
    held = io.BytesIO()
    soundfile.write(
        held,
        np.random.default_rng(random.getrandbits(32)).normal(size=rate // 10) / 9,
        rate,
        format=kind,
        subtype=subtype,
    )
    return f"a.{kind.lower()}", changed_numbers(held.getvalue(), random)


def picture(random: Random) -> tuple[str, bytes]:
    from PIL import Image

    kind, mode = random.choice(
        (("PNG", "L"), ("PNG", "P"), ("JPEG", "RGB"), ("TIFF", "F"), ("TIFF", "I;16"), ("GIF", "P"), ("BMP", "RGB"))
    )
    held = io.BytesIO()
    Image.new("L", (40, 30), 90).convert("I" if mode == "I;16" else mode).save(held, kind)
    return f"a.{kind.lower()}", changed_numbers(held.getvalue(), random, last=256)


def document(random: Random) -> tuple[str, bytes]:
    """Return a document with many, deep or long parts of one kind."""
    count = random.choice((1, 100, 10_000, 100_000))
    unit = random.choice(
        (
            b"- <i>",
            b"<i>",
            b"</i>",
            b"a\n\n",
            b"a ",
            b"&amp;",
            b"<p>",
            b"<",
            b"[",
            b"{",
            b"\\u",
            b'"',
            b"|",
            b"%0",
            b"#",
            b"\r",
            b"?! ",
        )
    )
    kind = random.choice(("txt", "html", "srt", "vtt", "docx", "md", "json", "po", "xliff"))
    text = unit * count
    if kind == "docx":
        text = docx(b"<w:p><w:r><w:t>" + text.replace(b"<", b"&lt;").replace(b"&amp;", b"a") + b"</w:t></w:r></w:p>")
    if kind in ("srt", "vtt"):
        head = b"WEBVTT\n\n" if kind == "vtt" else b"1\n"
        text = head + b"00:00:00.000 --> 00:00:01.000\n" + text.replace(b"\n\n", b"\n")
    return f"a.{kind}", text[:4_900_000]


def json_text(random: Random) -> bytes:
    """Return the body of a request with one field replaced, of another type, or too large."""
    value: dict[str, Any] = {"text": "A dog runs.", "beam": 2}
    many = random.choice((1, 100, 10_000))
    odd: list[Any] = [
        "a" * many,
        ["a"] * many,
        {"a": 1},
        10**many,
        -1,
        1e308,
        None,
        True,
        "?! " * many,
        "<b>" * many,
        "{" * many,
    ]
    odd += ["%0" * many, "#a" * many, "a@" * many, "\u0301" * many, "\u200b" * many, "1," * many]
    name = random.choice(
        ("text", "beam", "ban", "constraints", "placeholders", "prefix", "split", "nbest", "letterless", "x" * many)
    )
    value[name] = random.choice(odd)
    if name == "placeholders":
        value["text"], value[name] = (
            str(random.choice(odd))[:19_000],
            ["number", "tag", "url", "email", "mention", "hashtag"],
        )
    text = json.dumps(value).encode()
    return text if random.random() < 0.8 else text[: random.randrange(len(text))] * random.choice((1, 100))


DRAWN: dict[str, tuple[str, Callable[[Random], Any]]] = {
    "recordings": ("/v1/transcribe", recording),
    "pictures": ("/v1/transcribe", picture),
    "documents": ("/v1/files", document),
    "JSON": ("/v1/translate", json_text),
}


def draw(target: Target, kind: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Send `count` drawn inputs one after the other; yield each with its time and its memory per byte.

    Recordings and images are read in this process, as `translume.sources` reads them in one of the server.
    """
    path, make = DRAWN[kind]
    if kind in ("recordings", "pictures"):
        read_here(kind, b"-")  # not to measure imports
    for number in range(seed, seed + count):
        made = make(Random(number))
        before, started = target.memory()[1], time.monotonic()
        if kind == "JSON":
            found = target.attack(path, made)
        elif kind == "documents":
            found = target.upload(*made)
        else:
            found = Counter([read_here(kind, made[1])])
        seconds, content = time.monotonic() - started, made if isinstance(made, bytes) else made[1]
        yield {
            "kind": kind,
            "seed": number,
            "bytes": len(content),
            "statuses": dict(found),
            "seconds": seconds,
            "mib": max(0.0, target.memory()[1] - before),
        }


def read_here(kind: str, content: bytes) -> str:
    """Read a recording or an image in this process; return what comes of it."""
    from translume.config.sources import AudioSettings, ImageSettings
    from translume.errors import DataError
    from translume.sources import frame_reader

    reader = frame_reader(AudioSettings() if kind == "recordings" else ImageSettings())
    assert reader is not None
    try:
        return f"{len(reader.read(content)):,} frames"
    except DataError:
        return "refused"


def report(target: Target, count: int, seed: int, kinds: list[str]) -> None:
    """Print the worst time and memory of each kind, and every answer 5xx."""
    print("| kind | inputs | longest, s (seed, bytes) | µs a byte, worst (seed) | growth, MiB (seed) | 5xx |")
    print("|---|---:|---:|---:|---:|---|")
    for kind in kinds:
        rows = list(draw(target, kind, count, seed))
        slow = max(rows, key=lambda row: row["seconds"])
        dear = max(rows, key=per_byte)
        large = max(rows, key=lambda row: row["mib"])
        failed = [row["seed"] for row in rows if any(status.startswith("5") for status in row["statuses"])]
        print(
            f"| {kind} | {len(rows)} | {slow['seconds']:.2f} ({slow['seed']}, {slow['bytes']:,}) | "
            f"{1e6 * per_byte(dear):.1f} ({dear['seed']}) | {large['mib']:.0f} ({large['seed']}) | {failed or '–'} |",
            flush=True,
        )


def per_byte(row: dict[str, Any]) -> float:
    """Return the seconds for each byte; a short input counts as 1,000 bytes."""
    return float(row["seconds"] / max(row["bytes"], 1000))


SHORT = ["The village has many people."] * 32
LONGEST = {"strategy": "beam", "beam": 16, "min_length": 1000, "max_length_extra": 1000}


@attack("32 sentences, min_length 1000, beam 16")
def min_length(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": SHORT, **LONGEST})


@attack("20 sentences, the same (within the limit), 8 at once")
def allowed_length(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": SHORT[:20], **LONGEST, "min_length": 1000}, 8)


@attack("ban of 2 KB, 45 at once")
def ban(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": "A dog.", "ban": ["ab " * 664]}, 45)


@attack("docx of 2.5 million empty paragraphs")
def word(target: Target) -> Statuses:
    return target.upload("a.docx", docx(b"<w:p/>" * 2_500_000))


@attack("530 slow bodies")
def slow_bodies(target: Target) -> Statuses:
    head = (
        "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
    )
    opened = target.sockets(530, head.encode())
    time.sleep(8)
    return closed(opened)


@attack("3,000 silent connections")
def silent(target: Target) -> Statuses:
    opened = target.sockets(3000, b"")
    time.sleep(8)
    return closed(opened)


def closed(opened: list[socket.socket]) -> Statuses:
    for each in opened:
        each.close()
    return Counter({f"{len(opened)} connections": 1})


@attack("60 uploads of a client")
def uploads(target: Target) -> Statuses:
    return target.upload("a.txt", b"A dog.\n" * 50, 60)


@attack('"?! " × 6,600')
def marks(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": "?! " * 6600}, 8)


@attack("Host: evil.example")
def host(target: Target) -> Statuses:
    return Counter([target.ask("GET", "/v1/info", address=ATTACKER, host="evil.example")[0]])


@attack("Content-Length with Transfer-Encoding")
def two_lengths(target: Target) -> Statuses:
    head = "POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", target.port), 5, (ATTACKER, 0)) as opened:
        opened.sendall(head.encode())
        return Counter([opened.recv(99).split()[1].decode()])


@attack("refused body of 4 GB")
def gigabytes(target: Target) -> Statuses:
    sent = 0
    with socket.create_connection(("127.0.0.1", target.port), 20, (ATTACKER, 0)) as opened, suppress(OSError):
        opened.sendall(b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000000\r\n\r\n")
        while sent < 4_000_000_000:
            sent += opened.send(bytes(1 << 20))
    return Counter({f"closed after {sent / 1e6:.0f} MB": 1})


@attack("ban, beam and constraints of the largest sizes, 20 at once")
def constraints(target: Target) -> Statuses:
    value = {"text": SHORT, "ban": ["a b"] * 600, "beam": 16, "nbest": 16, "constraints": [["的 人", "村庄"] * 40] * 32}
    return target.attack("/v1/translate", {**value, "strategy": "beam"}, 20)


@attack("a constraint of 2 KB in each line, 20 at once")
def include(target: Target) -> Statuses:
    return target.attack(
        "/v1/translate", {"text": SHORT, "strategy": "beam", "constraints": [["人 村 " * 300]] * 32}, 20
    )


@attack("five constraints in a sentence, 20 at once")
def phrases(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": SHORT[:1], "constraints": [["人", "村庄", "的", "一", "不"]]}, 20)


@attack("no_repeat_ngram 1 with long targets, 8 at once")
def no_repeat(target: Target) -> Statuses:
    return target.attack("/v1/translate", {"text": SHORT[:10], "no_repeat_ngram": 1, **LONGEST}, 8)


@attack("16 samples with alternatives and detail, 20 at once")
def samples(target: Target) -> Statuses:
    value = {"text": SHORT, "strategy": "sample", "samples": 16, "nbest": 16, "detail": True}
    return target.attack("/v1/translate", value, 20)


@attack("/translate with 16 alternatives of 200 texts, 10 at once")
def alternatives(target: Target) -> Statuses:
    value = {"q": ["A dog runs. " * 5] * 200, "source": "en", "target": "zh", "alternatives": 15}
    return target.attack("/translate", value, 10)


@attack("HTML of 20,000 characters of tags, 20 at once")
def html_text(target: Target) -> Statuses:
    value = {"q": "<b>a</b>" * 2400, "source": "en", "target": "zh", "format": "html"}
    return target.attack("/translate", value, 20)


@attack("HTML of 6,600 unclosed tags, 20 at once")
def html_open(target: Target) -> Statuses:
    return target.attack("/translate", {"q": "<b>" * 6600, "source": "en", "target": "zh", "format": "html"}, 20)


@attack("/v2/translate: 50 texts of 10,000 letters without spaces, 20 at once")
def deepl(target: Target) -> Statuses:
    return target.attack("/v2/translate", {"text": ["x" * 10_000] * 50, "target_lang": "ZH"}, 20)


@attack("JSON nested 100,000 deep, 100 at once")
def nested(target: Target) -> Statuses:
    return target.attack("/v1/translate", b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 100)


@attack("JSON of 90,000 keys, 50 at once")
def many_keys(target: Target) -> Statuses:
    return target.attack("/v1/translate", b"{" + b",".join(b'"%x":1' % i for i in range(90_000)) + b"}", 50)


@attack("form of 249,000 fields, 50 at once")
def form(target: Target) -> Statuses:
    kind, body = "application/x-www-form-urlencoded", b"q=a&" * 249_000
    return at_once(50, lambda: target.ask("POST", "/translate", body, ATTACKER, content_type=kind)[0])


@attack("multipart of 90,000 parts, 4 at once")
def multipart(target: Target) -> Statuses:
    kind = "multipart/form-data; boundary=e"
    body = b'--e\r\nContent-Disposition: form-data; name="q"\r\n\r\n\r\n' * 90_000 + b"--e--\r\n"
    return at_once(4, lambda: target.ask("POST", "/v1/files", body, ATTACKER, content_type=kind)[0])


@attack("HTML file of a million tags")
def html_file(target: Target) -> Statuses:
    return target.upload("a.html", b"<b>x" * 1_200_000, 3)


@attack("srt of 130,000 cues")
def subtitles(target: Target) -> Statuses:
    return target.upload("a.srt", b"".join(b"1\n00:00:00,000 --> 00:00:01,000\na\n\n" for _ in range(130_000)), 3)


@attack("txt of 2.5 million lines")
def lines(target: Target) -> Statuses:
    return target.upload("a.txt", b"a\n" * 2_490_000, 3)


@attack("docx that unpacks to 1 GB")
def bomb(target: Target) -> Statuses:
    return target.upload("a.docx", zipped(word__document_xml=bytes(1_000_000_000)), 3)


@attack("docx with 40,000 entries, epub, odt and pptx alike")
def entries(target: Target) -> Statuses:
    data = zipped(**{f"word__{i}_xml": b"<a/>" for i in range(40_000)})
    return sum((target.upload(f"a.{kind}", data) for kind in ("docx", "epub", "odt", "pptx")), Counter())


@attack("docx nested 500,000 deep")
def deep(target: Target) -> Statuses:
    return target.upload("a.docx", docx(b"<w:p>" * 500_000 + b"</w:p>" * 500_000), 3)


@attack("docx with a 5 MB name and 400,000 attributes")
def attributes(target: Target) -> Statuses:
    inner = b"<w:p " + b" ".join(b'a%d="1"' % i for i in range(400_000)) + b"/>"
    return target.upload("a.docx", docx(inner + b"<" + b"n" * 5_000_000 + b"/>"), 3)


@attack("pdf of 5 MB with a stream of 1 GB")
def pdf(target: Target) -> Statuses:
    import zlib

    packed = zlib.compress(zlib.compress(b"BT /F1 1 Tf (a) Tj ET " * 20_000_000, 9), 9)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>",
        b"<</Length %d/Filter[/FlateDecode/FlateDecode]>>stream\n%b\nendstream" % (len(packed), packed),
    ]
    body = b"%PDF-1.4\n" + b"".join(b"%d 0 obj%b endobj\n" % (i + 1, each) for i, each in enumerate(objects))
    return target.upload("a.pdf", body + b"trailer<</Root 1 0 R/Size 5>>\n%%EOF", 3)


@attack("20 streams that are not read")
def unread(target: Target) -> Statuses:
    body = json.dumps({"text": ["The village. " * 200] * 4}).encode()
    head = "POST /v1/translate/stream HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    opened = target.sockets(20, head.encode() + body)
    time.sleep(8)
    return closed(opened)


@attack("10,000 requests on one connection")
def keep_alive(target: Target) -> Statuses:
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60, source_address=(ATTACKER, 0))
    found: Statuses = Counter()
    for _ in range(10_000):
        connection.request("GET", "/v1/models")
        answer = connection.getresponse()
        answer.read()
        found[str(answer.status)] += 1
    return found


@attack("10,000 pipelined requests")
def pipelined(target: Target) -> Statuses:
    opened = target.sockets(1, b"")[0]
    with opened, suppress(OSError):
        opened.settimeout(5)
        opened.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
    return Counter({"sent": 1})


@attack("inspect with everything, 40 at once")
def inspect(target: Target) -> Statuses:
    value = {"text": "The village has many people. " * 3, "search": True, "k": 50, "beam": 16, "strategy": "beam"}
    return target.attack("/v1/inspect", value, 40)


@attack("score of 256 long texts, 20 at once")
def score(target: Target) -> Statuses:
    value = {"sources": ["The village has many people."] * 256, "targets": ["人" * 900] * 256}
    return target.attack("/v1/score", value, 20)


def measure(name: str, target: Target) -> dict[str, Any]:
    watch = Watch(target)
    started = time.monotonic()
    with watch.running():
        found = ATTACKS[name](target)
    return {
        "attack": name,
        "statuses": dict(found),
        "seconds": time.monotonic() - started,
        "translation_seconds": watch.waits["translation"],
        "health_seconds": watch.waits["health"],
        "failures": dict(watch.failures),
        "answering_mib": watch.peak[0],
        "all_mib": watch.peak[1],
    }


def row(found: dict[str, Any]) -> str:
    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in counts.items()) or "–"

    return (
        f"| {found['attack']} | {listed(found['statuses'])} | {found['translation_seconds']:.2f} | "
        f"{found['health_seconds']:.2f} | {listed(found['failures'])} | {found['answering_mib']:.0f} | "
        f"{found['all_mib']:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of attacks")
    parser.add_argument("--keys", action="store_true", help="require a key, which the attacker does not have")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="send N drawn inputs of each kind instead")
    parser.add_argument("--seed", type=int, default=0, help="of the first drawn input; the next has the next one")
    given = parser.parse_args()
    names = [name for name in ATTACKS if not given.only or any(part in name for part in given.only)]
    with tempfile.TemporaryDirectory() as folder:
        options = []
        if given.keys:
            path = Path(folder) / "keys.json"
            add = [sys.executable, "-m", "translume", "keys", "add", str(path), "a"]
            key = subprocess.run(add, capture_output=True, text=True, check=True).stdout.strip()
            options = [f"--keys={path}", "--set=keys.requests_per_minute=99999"]
        target = Target(given.model, Path(folder), *options)
        target.key = key if given.keys else ""
        if given.draw:
            report(target, given.draw, given.seed, [kind for kind in DRAWN if not given.only or kind in given.only])
            print(f"tracebacks in the log: {target.stop()}", file=sys.stderr)
            return
        if not given.json:
            print("| attack | its statuses | a translation, s | health, s | failures | answering MiB | all MiB |")
            print("|---|---|---:|---:|---|---:|---:|")
        for name in names:
            found = measure(name, target)
            print(json.dumps(found) if given.json else row(found), flush=True)
            time.sleep(1)
        print(f"tracebacks in the log: {target.stop()}", file=sys.stderr)


if __name__ == "__main__":
    main()
