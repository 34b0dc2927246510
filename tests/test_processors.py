"""Processors by affinity, quota and set, and the environment of OpenMP."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from translume import processors
from translume.processors import SPINS, usable_processors

QUOTA, PERIOD = (f"cpu,cpuacct/docker/7f/cpu.cfs_{name}_us" for name in ("quota", "period"))
V1 = "4:cpuset:/\n3:cpu,cpuacct:/docker/7f\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (None, {}, 11),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 11),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "3000000 100000\n"}, 11),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "500000 100000\n"}, 5),  # of a slice around it
        ("0::/on/the/host\n", {"cpu.max": "200000 100000\n"}, 2),  # a container's own view
        ("0::/\n", {"cpuset.cpus.effective": "0-3,8\n"}, 5),
        ("0::/\n", {"cpuset.cpus.effective": "\n", "cpu.max": "700000 100000\n"}, 7),
        ("0::/\n", {"cpuset.cpus.effective": "2\n", "cpu.max": "700000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "many"}, 11),
        (V1, {QUOTA: "-1", PERIOD: "100000"}, 11),
        (
            V1,
            {QUOTA: "250000", PERIOD: "50000"},
            5,
        ),
        ("1:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),  # hybrid
        ("rubbish\n::\n", {}, 11),
    ],
)
def test_processors_follow_quotas_and_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(processors, "_by_affinity", lambda: 11)
    if groups is not None:
        files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {"proc/self/cgroup": groups}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_processors(tmp_path) == expected


@pytest.mark.parametrize(
    ("given", "first", "expected"),
    [
        ({}, "", SPINS),
        ({"GOMP_SPINCOUNT": "7"}, "", {**SPINS, "GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, "", {}),
        ({}, "import torch;", {}),
    ],
)
def test_spinning_is_bounded_unless_the_user_chose(given: dict[str, str], first: str, expected: dict[str, str]) -> None:
    names = [*SPINS, "OMP_WAIT_POLICY"]
    environment = {name: value for name, value in os.environ.items() if name not in names} | given
    code = f"{first}import os, translume; print({{n: os.environ[n] for n in {[*SPINS]} if n in os.environ}})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"


def test_threads_follow_the_quota_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_by_affinity", lambda: 11)
    monkeypatch.setattr(processors, "usable_processors", lambda: 3)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for given, expected in (("", "3"), ("2", "2")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        processors.configure_openmp()
        assert os.environ["OMP_NUM_THREADS"] == expected
