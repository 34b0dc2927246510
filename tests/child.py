"""A child process for the tests of `translume.processes`."""

import os
import signal
import sys
import time

from translume.errors import SettingsError
from translume.processes import Request, connect, requests, serve_requests


def handle(request: Request) -> None:
    match request.method:
        case "echo":
            for _ in range(request.values.get("times", 1)):
                request.respond(request.values, request.body)
        case "print":
            print("noise", flush=True)
            os.write(1, b"from C\n")
            print("warning", file=sys.stderr, flush=True)
            request.respond({"path": sys.path, "group": os.getpgrp()})
        case "fail":
            raise SettingsError("a.b: found 1, expected 2")
        case "crash":
            raise ValueError("a secret")
        case "wait":
            request.respond({})
            request.cancelled.wait()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "garbage":
            request.connection._socket.sendall(b"this is no frame, whatever its length is")
            time.sleep(60)
        case "grandchild":
            if not os.fork():  # keeps the socket open
                time.sleep(3)
            os._exit(3)
        case "close":
            request.connection.shutdown()
            time.sleep(60)


def main() -> None:
    if os.environ.get("STUCK"):  # only SIGKILL ends the process, not the end of the connection or another signal
        held = connect(shield=(signal.SIGINT, signal.SIGTERM))
        next(requests(held)).handle(handle)
        time.sleep(60)
    serve_requests(handle, shield=(signal.SIGINT,))
