"""The processes that train one model, one per device: joining them, exchanging numbers and texts, and errors.

`torchrun` starts the processes and sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Without these
variables a process is a group of its own, and every method returns at once.
"""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from translume.device import choose_device, is_cpu, make_current
from translume.errors import TrainingError, TranslumeError

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(days=1)
"""Limit of one exchange: the other processes wait while rank 0 prepares the data. A dead process ends it at once."""

PIECE = 1 << 22
"""Rows of a vector that are gathered at a time."""

ANSWER_SECONDS = 3.0
"""How long the other processes have to report that they are alive, after one has died."""


class GroupError(TrainingError):
    """An error of any process of a group, raised in all of them.  reports: whether this process prints it."""

    def __init__(self, message: str, *, reports: bool) -> None:
        super().__init__(message)
        self.reports = reports


class Group:
    """This process and the others.  rank: from 0.  size: number of processes.  local: rank on this machine.

    doing: what the processes are doing, for the message about a process that died.
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0) -> None:
        self.rank, self.size, self.local = rank, size, local
        self.doing = "preparing"

    @property
    def alone(self) -> bool:
        """Whether there is only this process."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes the folder and reports."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Return the device of a name, which becomes torch's current one; in a group on GPUs, the one of this process.

        A process of a group does not compare the cards: that would take memory of all of them.
        """
        own = not self.alone and (name == "cuda" or (name == "auto" and not is_cpu(name)))
        chosen = choose_device(f"cuda:{self.local}" if own else name)
        make_current(chosen)
        return chosen

    # ---- exchanges: all processes call the same methods in the same order

    def numbers(self, values: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every rank, which are equally many."""
        if self.alone:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        self.exchange(lambda: dist.all_gather(gathered, mine))
        return [each.tolist() for each in gathered]

    def texts(self, text: str) -> list[str]:
        """Return the text of every rank."""
        return [data.decode() for data in self.blobs(text.encode())]

    def blobs(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank."""
        if self.alone:
            return [data]
        sizes = [int(size) for (size,) in self.numbers([len(data)])]
        if not any(sizes):
            return [b""] * self.size
        mine = torch.zeros(max(sizes), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        self.exchange(lambda: dist.all_gather(gathered, mine))
        return [each[:size].numpy().tobytes() for each, size in zip(gathered, sizes, strict=True)]

    def add(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks. The bits are the same on every rank."""
        if not self.alone:
            self.exchange(lambda: dist.all_reduce(tensor))

    def join(self, whole: Tensor, part: Tensor) -> None:
        """Fill a vector with the equal parts of all ranks, in their order.

        Sends `PIECE` rows at a time, because gloo copies what it gathers.
        """
        parts = whole.chunk(self.size)
        for begin in range(0, len(part), PIECE):
            pieces, own = [each[begin : begin + PIECE] for each in parts], part[begin : begin + PIECE]
            self.exchange(partial(dist.all_gather, pieces, own))

    def receive(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        if not self.alone:
            for tensor in tensors:
                whole = tensor.contiguous()
                self.exchange(lambda whole=whole: dist.broadcast(whole, 0))  # type: ignore[misc]  # mypy has no types of defaults
                if whole is not tensor:
                    tensor.copy_(whole)

    def exchange(self, collective: Callable[[], T]) -> T:
        """Return what a function returns that exchanges tensors. Raises GroupError if the connection is lost."""
        try:
            return collective()
        except RuntimeError as error:
            raise self._lost(error) from None

    def caught(self, name: str) -> str:
        """Return the name of a signal that any rank has caught, or ""."""
        if self.alone:
            return name
        most = max(int(number) for (number,) in self.numbers([signal.Signals[name].value if name else 0]))
        return signal.Signals(most).name if most else ""

    # ---- errors

    def agree(self, message: str = "") -> None:
        """Raise GroupError in every process if any of them has a message."""
        texts = self.texts(message)
        failed = [rank for rank, text in enumerate(texts) if text]
        if failed:
            text = texts[failed[0]]
            raise GroupError(text if len(set(texts)) == 1 else f"rank {failed[0]}: {text}", reports=self.leads)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block without exchanges in every process. An error in one of them ends all."""
        if self.alone:
            yield
            return
        try:
            yield
        except GroupError:
            raise
        except (TranslumeError, OSError, MemoryError) as error:
            self.agree(_line(error))
            raise
        self.agree()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run a block without exchanges in rank 0, then in all others. An error in one of them ends all."""
        if not self.leads:
            self.agree()
        with self.together():
            if self.leads:
                with self.together():
                    yield
            else:
                yield

    def refuse_differences(self, facts: Mapping[str, object]) -> None:
        """Raise GroupError, naming the rank and the first fact, if any rank has other facts than rank 0."""
        by_rank = [text.split("\n") for text in self.texts("\n".join(f"{name} = {facts[name]!r}" for name in facts))]
        message = ""
        for mine, first in zip(by_rank[self.rank], by_rank[0], strict=False):
            if mine != first and not message:
                message = f"found {mine}, but rank 0 has {first}; expected the same on every rank"
        self.agree(message)

    def leaving(self, message: str) -> GroupError:
        """Leave the group, and return the error to raise: this process cannot take part in the exchanges of others."""
        dist.destroy_process_group()
        return GroupError(f"rank {self.rank}: {message}", reports=True)

    def _lost(self, error: RuntimeError) -> GroupError:
        """Find the processes that died, and return the error that says so. The exchange of the others fails too."""
        store = dist.distributed_c10d._get_default_store()
        dead: list[int] = []
        try:
            store.set(f"alive/{self.rank}", "")
            dist.destroy_process_group()  # closes the connections, so that no other process waits for this one
            dead = [rank for rank in range(self.size) if rank != self.rank]
            end = time.monotonic() + ANSWER_SECONDS
            while dead and time.monotonic() < end:
                dead = [rank for rank in dead if not store.check([f"alive/{rank}"])]
                time.sleep(0.05)
        except RuntimeError:  # the store was in rank 0, or with the agent of its machine
            dead = dead or [0]
        reports = self.rank == min(set(range(self.size)) - set(dead), default=self.rank)
        if not dead:
            return GroupError(f"{self.doing}: the processes lost their connection: {_line(error)}", reports=reports)
        names = " and ".join(f"rank {rank}" for rank in dead)
        return GroupError(
            f"{names} of {self.size} processes died; {self.doing}; the same command resumes the run", reports=reports
        )


def _line(error: BaseException) -> str:
    return " ".join(str(error).splitlines()) or type(error).__name__


@contextmanager
def joined() -> Iterator[Group]:
    """Join the group that the environment names; a process that has joined already keeps its group."""
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
        return
    if not all(os.environ.get(name) for name in VARIABLES) or os.environ["WORLD_SIZE"] == "1":
        yield Group()
        return
    try:
        rank, size, local = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise TrainingError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}; expected the numbers that torchrun sets") from None
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if "EADDRINUSE" in str(error) or "address already in use" in str(error):
            raise GroupError(
                f"{place}: the port is in use; choose another with torchrun --master-port", reports=True
            ) from None
        raise GroupError(f"{place}: rank {rank} cannot join {size} processes: {_line(error)}", reports=True) from None
    try:
        yield Group(rank, size, local)
    finally:
        gc.collect()  # else reference cycles of a sharded model keep the group's threads until the process ends
        if dist.is_initialized():
            dist.destroy_process_group()
