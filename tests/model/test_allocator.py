"""Keeping freed memory in the C library's allocator."""

import json
import os
import subprocess
import sys

import pytest

from translume.kernels.allocator import CACHED_KERNELS, limit_cached_kernels

PROGRAM = """
import json, os, resource, torch
from translume.kernels.allocator import keep_freed_memory, return_freed_memory

child = os.fork()
if not child:  # with a limit on the address space
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    keep_freed_memory()
    os._exit(17)
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def faults():
    for _ in range(3):
        torch.ones(20_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

assert return_freed_memory()
blocks = [torch.ones(500_000) for _ in range(99)]
kept = blocks[::2]
before = resident()
del blocks
returned = before - resident()
plain = faults()
assert keep_freed_memory()
print(json.dumps([ended, returned, plain, faults()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is asked on Linux only")
def test_freed_memory_is_returned_at_once_or_reused_without_page_faults():
    """And a limit on the address space raises no error."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    ended, returned, plain, kept = json.loads(done.stdout)
    assert ended == 17
    assert returned > 49 * 2_000_000 * 0.9
    assert kept * 20 < plain


def test_how_many_compiled_products_are_kept_is_what_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CACHED_KERNELS
    monkeypatch.setenv(first, "7")
    monkeypatch.setenv(second, "")
    monkeypatch.delenv(second)
    limit_cached_kernels()
    assert (os.environ[first], os.environ[second]) == ("7", CACHED_KERNELS[second])
