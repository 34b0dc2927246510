"""Share the lines of an input among the processes of a Ray cluster."""

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from translume.config import DecodingSettings
from translume.errors import SettingsError
from translume.processes import ProcessLostError
from translume.translator.jobs import Job, find_job
from translume.translator.planning import Line, LineError
from translume.translator.workers import EngineDtype, PlainDtype, R, WorkerPool, load_worker, outcomes

RETRIES: Final = 3
"""How often Ray gives the same lines to another process after the death of one."""


CONNECT_SECONDS: Final = 10.0
"""How long the machine of a cluster has to answer."""


class _Actor:
    """A process of the cluster with the model of a folder on one thread."""

    def __init__(self, folder: str, dtype: EngineDtype | None, plain: PlainDtype) -> None:
        self._load: Callable[[], Any] = partial(load_worker, folder, dtype, plain)

    def run(self, job: str, lines: list[Line], settings: DecodingSettings) -> list[Any]:
        """Return the outcome of each line.  job: its name."""
        model, found = self._load(), find_job(job)
        return list(outcomes(lambda rest: found.run(model, rest, settings), lines))

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


class RayWorkers(WorkerPool):
    """Actors of a Ray cluster, one for each CPU. Ray starts an actor that died again, and gives it the same lines.

    The model folder must have the same path on all machines.
    """

    def __init__(
        self,
        address: str,
        folder: Path | str,
        count: int | None = None,
        dtype: EngineDtype | None = None,
        plain: PlainDtype = "fp32",
    ) -> None:
        """address: of a cluster, such as "head:6379"; "auto" for that of this machine, "local" to start one here.

        count: of actors; None: as many as the cluster has CPUs.  dtype, plain: as for `Workers`.
        Raises SettingsError if Ray is not installed or has no cluster there, or not so many CPUs.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise SettingsError(f"--ray: {error.name} is not installed; pip install 'translume[cluster]'") from None
        self._ray = ray
        self._refuse_unreachable(address)
        more: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR", **more)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise _no_cluster(address, error) from None
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if not 0 < (count or cpus) <= cpus:
            ray.shutdown()
            raise SettingsError(f"--workers: found {count or 0}, but the cluster has {cpus} CPUs")
        super().__init__(count or cpus)
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=RETRIES)(_Actor)
        self._actors = [actor.remote(str(Path(folder).absolute()), dtype, plain) for _ in range(self.count)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for each in self._actors:
            self._idle.put(each)

    @property
    def pids(self) -> list[int]:
        """Ids of the actors' processes, each on its machine."""
        found: list[int] = self._ray.get([actor.pid.remote() for actor in self._actors])
        return found

    def close(self) -> None:
        """End the actors, and a cluster that was started here. Requests in progress are lost."""
        for actor in self._actors:
            self._ray.kill(actor)
        super().close()
        self._ray.shutdown()

    @staticmethod
    def _refuse_unreachable(address: str) -> None:
        """Raise SettingsError if nothing answers at HOST:PORT, which Ray would try for minutes."""
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            try:
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                raise _no_cluster(address, error) from None

    def _request(self, job: Job[R], lines: list[Line], settings: DecodingSettings) -> Iterator[R | LineError]:
        actor = self._idle.get()
        try:
            yield from self._ray.get(actor.run.remote(job.name, lines, settings))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise ProcessLostError(" ".join(str(error).split())) from None
        finally:
            self._idle.put(actor)


def _no_cluster(address: str, error: Exception) -> SettingsError:
    reason = " ".join(str(error).split())
    return SettingsError(f"--ray {address}: found no cluster, expected the address of one: {reason}")
