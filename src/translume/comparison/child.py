"""`python -m translume.comparison.child`: train and measure one model in a process of its own, told as lines of JSON.

A process of its own has a peak of memory of its own, and takes nobody along when it dies. A request comes on standard
input; events, the peak, measures and what failed go to standard output, and whatever else is printed to standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from translume.config import Config
from translume.errors import TranslumeError

STOPPED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to train and measure; see `compare`."""

    config: Config
    folder: Path
    sentences: int
    device: str
    threads: int | None

    def to_json(self) -> str:
        """Text that `from_json` reads back."""
        values = {"config": self.config.model_dump(mode="json"), "folder": str(self.folder)}
        rest = {"sentences": self.sentences, "device": self.device, "threads": self.threads}
        return json.dumps({**values, **rest})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        config, folder = Config.build(values.pop("config")), Path(values.pop("folder"))
        return cls(config=config, folder=folder, **values)


def main() -> int:
    """Do what standard input asks for; 0 if it was done, or was interrupted and saved."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no line of ours

    def say(line: str) -> None:
        lines.write(f"{line}\n")
        lines.flush()

    try:
        _work(Request.from_json(sys.stdin.read()), say)
    except TranslumeError as error:
        say(json.dumps({"event": "failed", "reason": str(error)}))
        return 1
    except KeyboardInterrupt:  # before the first update or while it measured: there is nothing to save
        return STOPPED
    return 0


def _work(request: Request, say: Callable[[str], None]) -> None:
    from translume.comparison.measuring import measure_head
    from translume.comparison.wire import to_line
    from translume.training.events import Finished
    from translume.training.train import train

    last = None
    for last in train(request.config, request.folder, device=request.device, threads=request.threads):
        say(to_line(last))
    if not (isinstance(last, Finished) and last.already):
        say(json.dumps({"event": "peak", "bytes": peak_bytes()}))
    if isinstance(last, Finished):
        found = measure_head(
            request.folder,
            request.config,
            sentences=request.sentences,
            device=request.device,
            threads=request.threads,
        )
        say(json.dumps({"event": "measured", **found.to_dict()}))


def peak_bytes() -> int:
    """The most memory so far: of the device where this process has used CUDA, else of the whole process (resident)."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # the other number counts what the process was before it became this program
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    sys.exit(main())
