"""One of two processes that train together, for test_group.py: `group_child.py FOLDER`."""

import itertools
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from translume.config import Config
from translume.data.batch import Batch
from translume.data.pairs import Pair
from translume.data.streaming import EpochReader
from translume.errors import DataError, TrainingError
from translume.model.head import HeadLoss
from translume.training import Finished, Progress, group, train
from translume.training.group import GroupError, joined
from translume.training.optimisation import Updater
from translume.training.sharded import ShardedUpdater


def error_of(config: Config, folder: Path, source: Path | None = None) -> list[Any]:
    """Return the message of a run that fails, and whether this process reports it."""
    try:
        for _ in train(config, folder, source=source):
            pass
    except TrainingError as error:
        return [str(error), isinstance(error, GroupError) and error.reports]
    return []


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    group.PIECE = 1013
    os.chdir(folder / f"rank{rank}")
    names = ("rows", "whole", "streamed", "documents")
    rows, whole, streamed, documents = (Config.read(folder / f"{name}.toml") for name in names)
    divided = rows.change("training.shard='full'", "training.updates=5")
    sharded = rows.change("training.shard='optimizer'", "training.updates=5")
    lost = Config.parse((folder / "lost.toml").read_text())  # its paths are relative to the current folder
    found: dict[str, Any] = {}
    with joined():
        *_, last = train(rows, folder / "undisturbed")
        assert isinstance(last, Finished)
        found["quality"] = [last.nll, last.metrics]
        list(train(whole, folder / "whole"))

        list(train(streamed, folder / "streamed"))
        interrupted = train(streamed, folder / "streamed and interrupted")
        assert any(isinstance(event, Progress) and event.update == 7 for event in interrupted)
        interrupted.close()  # type: ignore[attr-defined]  # a generator
        list(train(streamed, folder / "streamed and interrupted"))

        list(train(sharded, folder / "sharded"))
        list(train(sharded.change("training.updates=8"), folder / "sharded"))
        list(train(divided, folder / "divided"))
        list(train(divided.change("training.updates=8"), folder / "divided"))
        *_, last = train(divided.change("training.updates=8"), folder / "undisturbed_divided")
        found["quality divided"] = [last.nll, last.metrics] if isinstance(last, Finished) else []
        list(train(documents, folder / "documents"))
        found["adapters"] = error_of(divided.change("training.lora_rank=2"), folder / "adapters", folder / "divided")

        events = []
        for event in train(rows, folder / "interrupted"):
            events.append(event)
            if rank == 1 and isinstance(event, Progress) and event.update == 7:
                os.kill(os.getpid(), signal.SIGTERM)
        found["interrupted"] = [type(event).__name__ for event in events[-2:]]
        list(train(rows, folder / "interrupted"))

        found["settings"] = error_of(rows.change(f"training.seed={rank + 3}"), folder / "settings")
        found["data"] = error_of(lost, folder / "data")
        read, reads = EpochReader.read, itertools.count()

        def fail(self: EpochReader, most: int) -> tuple[int, list[Pair]] | None:
            if rank == 1 and next(reads) == 1:
                raise DataError("train.source:211: not UTF-8")
            return read(self, most)

        with patch.object(EpochReader, "read", fail):
            found["stream"] = error_of(streamed, folder / "stream")
        reads = itertools.count()

        def interrupt(self: EpochReader, most: int) -> tuple[int, list[Pair]] | None:
            if rank == 1 and next(reads) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return read(self, most)

        with patch.object(EpochReader, "read", interrupt):
            stopped = [type(event).__name__ for event in train(streamed, folder / "stopped while reading")]
        found["stopped while reading"] = stopped[-1]
        list(train(streamed, folder / "stopped while reading"))
        real = Updater.add

        def add(self: Updater, batch: Batch) -> HeadLoss:
            loss = real(self, batch)
            return replace(loss, objective=loss.objective * float("nan")) if rank == 1 else loss

        Updater.add = add  # type: ignore[method-assign]
        found["nan"] = error_of(whole, folder / "nan")
        Updater.add = real  # type: ignore[method-assign]
        whole_real = ShardedUpdater.add

        def second(self: ShardedUpdater, batch: Batch) -> HeadLoss:
            loss = whole_real(self, batch)
            return replace(loss, objective=loss.objective * float("nan")) if rank == 1 else loss

        ShardedUpdater.add = second  # type: ignore[method-assign]
        found["nan divided"] = error_of(divided.change("training.accumulate=3"), folder / "nan_divided")
        ShardedUpdater.add = whole_real  # type: ignore[method-assign]
        (folder / f"found{rank}.json").write_text(json.dumps(found))
        if rank == 1:
            for event in train(rows, folder / "death"):
                if isinstance(event, Progress) and event.update == 5:
                    os._exit(9)
        found["death"] = error_of(rows, folder / "death")
        (folder / f"found{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
