"""Run Python programs in forks of a process that has already imported torch, which takes seconds.

`start` writes a program that takes the arguments of `python`: `-c CODE`, `-m MODULE` or FILE, and then others. Its
working directory, environment and open files are those of the caller, and SIGHUP, SIGINT and SIGTERM reach it.
PYTHONUNBUFFERED and the like have no effect. Tests of what is imported start `sys.executable` instead. Processes that
such a program starts by `multiprocessing` are such forks, too.
"""

import atexit
import fcntl
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
IMPORTED = (
    "torch", "torch._dynamo", "numpy", "matplotlib.pyplot", "sacrebleu", "sacrebleu.tokenizers.tokenizer_13a",
    "rich.console", "translume.cli", "translume.cli.evaluate", "translume.cli.inspect",
    "translume.cli.train", "translume.cli.training_display", "translume.cli.translate",
    "translume.experiments.processes",
    "translume.data.evaluation_files", "translume.inspection.figures", "translume.engine",
    "translume.evaluation.metrics",
    "translume.serving.api.app", "translume.serving.run", "translume.serving.front",
    "translume.tasks.classification", "translume.tasks.language_model", "translume.tasks.sequence",
    "translume.training.train", "translume.translator.workers",
)  # fmt: skip
OPTIONAL = ("torch.utils.tensorboard",)
CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

def is_open(file):
    try:
        return bool(os.fstat(file))
    except OSError:
        return False

files = [each for each in map(int, os.listdir("/proc/self/fd")) if is_open(each)]
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    job = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ), files]).encode()
    socket.send_fds(server, [len(job).to_bytes(8, "big")], files)
    server.sendall(job)
    pid = int.from_bytes(server.recv(4), "big")
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: os.kill(pid, number))
    status = int.from_bytes(server.recv(4) or bytes([0, 0, 0, 1]), "big", signed=True)
for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_DFL)
if status < 0:
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@contextmanager
def start(folder: Path) -> Iterator[Path]:
    """Yield the path of the program. The folder has a short path, as addresses of sockets have at most 107 bytes."""
    address, program = folder / "socket", folder / "python"
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, __file__, address, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as server:  # the server ends with its standard input
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        program.write_text(CLIENT.format(python=sys.executable, address=str(address)), encoding="utf-8")
        program.chmod(0o755)
        yield program


def serve(address: str) -> tuple[list[str], str, dict[str, str], dict[int, int]] | None:
    """Fork for each job and return it in the fork: arguments, folder, environment, files. Return None at the end."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            ready: list[Any] = select.select([0, woken, listener, *running.values()], [], [])[0]
            if 0 in ready:
                return None
            for pid, client in running.items():
                if client in ready:  # its caller has gone
                    os.kill(pid, signal.SIGKILL)
            if woken in ready:
                os.read(woken, 1000)
                while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    with running.pop(ended[0]) as client, suppress(BrokenPipeError):
                        client.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))
            if listener in ready:
                client, _ = listener.accept()
                head, received, _, _ = socket.recv_fds(client, 8, 29)
                with client.makefile("rb") as sent:
                    job = sent.read(int.from_bytes(head, "big"))
                if not job.endswith(b"]"):  # its caller has been killed
                    client.close()
                    for each in received:
                        os.close(each)
                    continue
                words, folder, environment, files = json.loads(job)
                if not (pid := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (client, *running.values()):
                        each.close()
                    for each in (woken, wakes):
                        os.close(each)
                    return words, folder, environment, dict(zip(files, received, strict=True))
                with suppress(BrokenPipeError):
                    client.sendall(pid.to_bytes(4, "big"))
                running[pid] = client
                for each in received:
                    os.close(each)


def reader() -> io.TextIOWrapper:
    """Return what Python opens for standard input."""
    return io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")


def writer(number: int) -> io.TextIOWrapper:
    """Return what Python opens for standard output or standard error."""
    errors = "strict" if number == 1 else "backslashreplace"
    lines = number == 2 or os.isatty(1)
    buffer = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=lines)


def run(words: list[str], folder: str, environment: dict[str, str], files: dict[int, int]) -> None:
    """Become the program of a job.  files: by number; standard streams that are missing are closed."""
    for number in range(3):
        os.close(number)
    moved = {number: fcntl.fcntl(each, fcntl.F_DUPFD, 1000) for number, each in files.items()}
    for each in files.values():
        os.close(each)
    for number, each in moved.items():
        os.dup2(each, number)
        os.close(each)
    sys.stdin = sys.__stdin__ = reader() if 0 in files else None
    sys.stdout = sys.__stdout__ = writer(1) if 1 in files else None
    sys.stderr = sys.__stderr__ = writer(2) if 2 in files else None
    os.environ.clear()
    os.environ.update(environment)
    if "PROMETHEUS_MULTIPROC_DIR" in environment:  # read by an import
        importlib.reload(importlib.import_module("prometheus_client.values"))
    os.chdir(folder)
    more = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    while words[0] in ("-B", "-P"):
        del words[0]
    how, *sys.argv = words
    sys.path[:1] = [str(Path(how).resolve().parent) if how[0] != "-" else "", *more]
    if how == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        code, sys.argv[0] = sys.argv[0], "-c"
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(module))
    else:
        sys.argv.insert(0, how)
        runpy.run_path(how, run_name="__main__")


def end(code: int) -> None:
    """End the process as Python does, but leave its memory alone; to free it takes ten times as long as to fork."""
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):  # of a stream that is full or closed, which Python reports in its own way
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(code & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    for name in OPTIONAL:
        with suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("translume.text.segmentation").segmenter("bpe")  # a tenth of a second
    os.fsync = lambda file: None  # as in conftest.py
    importlib.import_module("translume.experiments.measuring").ROUNDS = 1  # no test is of the times of a step
    gc.freeze()
    multiprocessing.set_executable(sys.argv[2])
    if (job := serve(sys.argv[1])) is not None:
        try:
            run(*job)
        except SystemExit as ended:
            if not isinstance(ended.code, int | None):
                raise
            end(ended.code or 0)
        else:
            end(0)
