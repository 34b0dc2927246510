"""The processors that this process may use, and how long idle threads of OpenMP, which torch uses, spin.

Control groups limit containers: a quota of processor time is not visible in the affinity of a process.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

SPINS = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""Environment variables of OpenMP libraries, and how long an idle thread spins: in rounds, and in milliseconds.

By default they spin for some or 200 milliseconds. Where cores are shared with other processes, threads then wait for
one that does not run, and use up its time.
"""


def configure_openmp() -> None:
    """Bound the spinning and the number of OpenMP's threads, unless the user has set them, before torch is loaded."""
    if "torch" in sys.modules:
        return
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SPINS.items():
            os.environ.setdefault(name, value)
    if "OMP_NUM_THREADS" not in os.environ and usable_processors() < _by_affinity():
        os.environ["OMP_NUM_THREADS"] = str(usable_processors())


def default_threads() -> int:
    """Return the number of threads of a computation: $OMP_NUM_THREADS, else the usable processors."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else usable_processors()


def usable_processors(root: Path = Path("/")) -> int:
    """Return the number of processors that this process may use, by its affinity and the quotas of its control groups.

    A part of a processor counts as one.  root: where /proc and /sys are.
    """
    shares = [*_quotas(root), *_sets(root)]
    return max(1, min([_by_affinity(), *(int(-(-share // 1)) for share in shares)]))


def _by_affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas of processor time in processors, of control groups in version 1 and 2."""
    for folder in _groups(root, "cpu"):
        try:
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            else:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = ((folder / name).read_text(encoding="ascii") for name in names)
            if quota != "max" and int(quota) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue


def _sets(root: Path) -> Iterator[int]:
    """Yield the sizes of the sets of processors, such as "0-3,8", of control groups in version 2."""
    for folder in _groups(root, "cpuset"):
        try:
            text = (folder / "cpuset.cpus.effective").read_text(encoding="ascii").strip()
            spans = [list(map(int, span.split("-"))) for span in text.split(",") if span]
            if spans:
                yield sum(span[-1] - span[0] + 1 for span in spans)
        except (OSError, ValueError):
            continue


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those that contain it, for a controller.

    A container sees its own group as the uppermost one, whatever its path on the host.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, names, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if names and controller not in names.split(","):
            continue
        for mount in [root / "sys/fs/cgroup" / each for each in ((names, controller) if names else ("", "unified"))]:
            place = mount / path.lstrip("/")
            yield from (each for each in (place, *place.parents) if each == mount or mount in each.parents)
