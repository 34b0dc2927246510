"""Keeping freed memory in the C library's allocator."""

import resource
import subprocess
import sys

import pytest

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is asked on Linux only")
FAULTS = """
import resource, torch
from translume.model.allocator import keep_freed_memory
{ask}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(20_000_000)
before = faults()
for _ in range(5):
    torch.ones(20_000_000)
print(faults() - before)
"""


def page_faults(warm_python, ask):
    done = subprocess.run([warm_python, "-c", FAULTS.format(ask=ask)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@linux
def test_freed_blocks_are_reused_without_page_faults(warm_python):
    assert page_faults(warm_python, "assert keep_freed_memory()") * 20 < page_faults(warm_python, "")


@linux
def test_a_limit_on_address_space_raises_no_error():
    limit = 3 << 30
    code = "from translume.model.allocator import keep_freed_memory; keep_freed_memory(); print('well')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.stdout == "well\n"


@linux
def test_freed_memory_is_returned_at_once(warm_python):
    code = """
import torch
from translume.model.allocator import return_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
assert return_freed_memory()
blocks = [torch.ones(500_000) for _ in range(99)]
kept = blocks[::2]
before = resident()
del blocks
print(before - resident())
"""
    done = subprocess.run([warm_python, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 49 * 2_000_000 * 0.9
