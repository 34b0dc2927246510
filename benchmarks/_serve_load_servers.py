"""Servers of `serve_load.py`: ours, and simple ones that process one request at a time, or one sentence per call.

    python _serve_load_servers.py KIND MODEL ENGINE THREADS LIMITS

prints its port as JSON, then responds to each line of standard input with its counts so far. MODEL "-" is a small model
with random weights.
"""

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from prometheus_client import generate_latest

from translume.translator import Translator
from translume.translator.loading import ComputeOptions, EngineName


def translator_of(model: str, computing: ComputeOptions) -> Translator:
    if model != "-":
        return Translator.load(Path(model), computing)
    found = small()
    return found if computing.engine == "plain" else found.compile("fp32")


def small() -> Translator:
    import torch

    from translume.checkpoint import Checkpoint, build_model
    from translume.config import Config, ModelSettings, TokenizerSettings
    from translume.text import train_tokenizer

    torch.manual_seed(3)
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), ["abcdefgh ."])
    settings = ModelSettings(width=64, feed_forward=128, encoder_layers=2, decoder_layers=2, attention_heads=4)
    network = build_model(settings, len(tokenizer), len(tokenizer)).eval()
    config = Config(model=settings).change("decoding.max_length=24", "decoding.beam=4")
    checkpoint = Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    return Translator(checkpoint)


def memory(pid: int) -> float:
    """Return the memory of a process in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) / 1024


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def told(counts: dict[str, Any]) -> None:
    computed = {"processor_seconds": processor_seconds(os.getpid()), "mebibytes": memory(os.getpid())}
    print(json.dumps({**counts, **computed}), flush=True)


def ours(model: str, computing: ComputeOptions, limits: dict[str, Any]) -> None:
    from translume.checkpoint import save_model
    from translume.serving.api.app import build_app
    from translume.serving.models import ServedModels
    from translume.serving.reloading import load_served
    from translume.serving.run import listen, serve
    from translume.serving.server import Server
    from translume.serving.settings import Limits, ServeSettings

    lanes = limits.pop("lanes", 1)
    bound = Limits(**limits)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model" if model == "-" else Path(model)
        if model == "-":
            save_model(folder, small().checkpoint)
        models = ServedModels([load_served(computing, "model", folder)])
        server = Server(models=models, settings=ServeSettings(limits=bound), lanes=lanes)
        listener = listen("127.0.0.1", 0)
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)

        def answer() -> None:
            for _ in sys.stdin:
                text = generate_latest(server.metrics.registry).decode()
                lines = [line.split() for line in text.splitlines()]
                counts = {
                    name: float(rest[0])
                    for name, *rest in lines
                    if name.startswith("translume_batch_") and "{" not in name
                }
                told(counts)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=answer, daemon=True).start()
        serve(build_app(server), listener, bound, lambda: None)


Translate = Callable[[list[str]], list[str]]


def in_one_batch(translator: Translator) -> Translate:
    settings = translator.config.decoding
    return lambda lines: [each.text for each in translator.translate_all(lines, settings=settings)]


def one_by_one(translator: Translator) -> Translate:
    settings = translator.config.decoding
    return lambda lines: [translator.translate(line, settings=settings).text for line in lines]


def by_ctranslate2(model: str) -> Translate:
    """One CTranslate2 call per sentence, as in LibreTranslate, with fp32 weights as ours."""
    from decode_speed import CTranslate2, exported

    folders = exported(model, ["ctranslate2 float32"], Path(tempfile.mkdtemp()))
    translate = CTranslate2(model, folders, "ctranslate2", "float32", 1)
    beam = translate.decoding.beam if translate.decoding.strategy == "beam" else 1
    return lambda lines: [translate([line], beam, False)[0] for line in lines]


def plainly(translate: Translate) -> None:
    """One request at a time: one call of `translate` with all of its lines."""
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with turn:
                texts = ["\n".join(translate(text.split("\n"))) for text in asked["text"]]
            body = json.dumps({"translations": [{"text": text} for text in texts]}, ensure_ascii=False).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    print(json.dumps({"port": listener.server_port}), flush=True)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    for _ in sys.stdin:
        told({})


if __name__ == "__main__":
    kind, model, engine, threads, limits = sys.argv[1:]
    computing = ComputeOptions(engine=cast(EngineName, engine), device="cpu", dtype="fp32", threads=int(threads))
    if kind == "ours":
        ours(model, computing, json.loads(limits))
    else:
        import torch

        torch.set_num_threads(int(threads))
        if kind == "one sentence a call by CTranslate2":
            plainly(by_ctranslate2(model))
        else:
            way = in_one_batch if kind == "one request at a time" else one_by_one
            plainly(way(translator_of(model, computing)))
