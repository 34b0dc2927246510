"""The main module of a process that reads and writes documents, so that a hostile one harms no other process.

Requests are `read` (a file; the responses are the number of characters, then its segments) and `write` (a file and the
runs of its segments; the response is the file with these texts).
"""

import os
import signal
import sys
from typing import Final

from translume.documents.files import FORMATS
from translume.documents.segments import Mark, Segment
from translume.errors import DocumentError
from translume.processes import Request, serve_requests

MEMORY_BYTES: Final = 2**30
"""Most memory of the process. The largest documents within the limits take a quarter of it."""
NICENESS: Final = 5
"""Added to the nice value of the process: requests for translations go first."""
GROUP: Final = 500
"""Segments of a response. Parsing larger ones would delay the other threads of the server."""


def handle(request: Request) -> None:
    """Handle one request. Raises DocumentError."""
    try:
        document = FORMATS[request.values["suffix"]].read(request.body)
        if request.method == "write":
            request.respond(body=document.with_runs(request.values["runs"]))
            return
        segments = document.segments
        request.respond({"characters": sum(len(segment.text) for segment in segments)})
        for begin in range(0, len(segments), GROUP):
            request.respond({"segments": [encode_segment(each) for each in segments[begin : begin + GROUP]]})
    except MemoryError:
        raise DocumentError(f"reading it takes more than {MEMORY_BYTES:,} bytes of memory") from None


def encode_segment(segment: Segment) -> list[list[str]]:
    """Return a segment as JSON values."""
    return [list(segment.runs), [mark.value for mark in segment.marks]]


def decode_segment(values: list[list[str]]) -> Segment:
    """Return the segment of `encode_segment`."""
    runs, marks = values
    return Segment(runs=tuple(runs), marks=tuple(map(Mark, marks)))


def main() -> None:
    """Run the process. It ends when its parent closes the connection."""
    _limit_memory()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    serve_requests(handle, shield=tuple(getattr(signal, name) for name in names if hasattr(signal, name)))


def _limit_memory() -> None:
    """Limit the memory of this process, or print a warning on a system that has no such limit."""
    try:
        import resource
    except ImportError:  # Windows
        print("warning: the memory of the process that reads documents is not limited", file=sys.stderr, flush=True)
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
