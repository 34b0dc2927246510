"""Messages between two processes over a socket: each a JSON object, and bytes that it says something about."""

import json
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SIZES: Final = struct.Struct("!II")
"""What a message begins with: how many bytes its object has, and how many follow that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An object, and bytes that go with it."""

    head: Mapping[str, Any]
    body: bytes = b""


class Channel:
    """One end of a socket. Any thread may send; one at a time may receive."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._file = end, end.makefile("rb")
        self._sending = threading.Lock()

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message whole, before or after those of other threads; OSError where the other end is no more."""
        text = json.dumps(head).encode()
        message = SIZES.pack(len(text), len(body)) + text + body
        with self._sending:
            self._socket.sendall(message)

    def receive(self) -> Message | None:
        """The next message; None when no more will come, whatever the reason."""
        try:
            sizes = self._file.read(SIZES.size)
            if len(sizes) < SIZES.size:
                return None
            head, body = SIZES.unpack(sizes)
            content = self._file.read(head + body)
        except (OSError, ValueError):
            # The other end is gone, or this one was closed by another thread.
            return None
        if len(content) < head + body:
            return None
        return Message(head=json.loads(content[:head]), body=content[head:])

    def end(self) -> None:
        """Let both ends know that no more will come."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other end was faster.
            return

    def close(self) -> None:
        """Let go of the socket, once nobody sends or receives any more."""
        self._file.close()
        self._socket.close()
