"""Work shared among processes: in order, in bounded memory; lost processes and errors of the input."""

import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import pytest

import translume
from translume.errors import DataError
from translume.parallel import ProcessLostError, WorkerPool, in_order


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool[int]]:
    """Two processes whose value is 40."""
    with WorkerPool(2, partial(int, "40")) as pool:
        yield pool


def test_results_come_in_order_while_few_items_are_read_ahead() -> None:
    read: list[int] = []

    def submit(item: int) -> Callable[[], int]:
        read.append(item)
        return lambda: item * item

    results = in_order(submit, range(100), 5)
    assert [next(results), next(results)] == [0, 1]
    assert len(read) == 7
    assert list(results) == [item * item for item in range(2, 100)]


def test_an_error_of_the_items_comes_after_the_results_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise DataError("in.txt:3: not UTF-8")

    results = in_order(lambda item: lambda: -item, items(), 9)
    assert [next(results), next(results)] == [-1, -2]
    with pytest.raises(DataError, match=r"^in.txt:3: not UTF-8$"):
        next(results)


def test_processes_apply_a_function_to_their_value_and_each_item(pool: WorkerPool[int]) -> None:
    assert list(pool.map(operator.add, range(50))) == list(range(40, 90))


def test_an_error_of_the_work_is_raised_and_the_processes_continue(pool: WorkerPool[int]) -> None:
    with pytest.raises(ZeroDivisionError):
        list(pool.map(operator.floordiv, [5, 0, 8]))
    assert list(pool.map(operator.floordiv, [5, 8])) == [8, 5]


def test_processes_ignore_ctrl_c(pool: WorkerPool[int]) -> None:
    assert list(pool.map(operator.add, [1, 2])) == [41, 42]
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
    assert list(pool.map(operator.add, [3, 4])) == [43, 44]


def test_a_killed_process_is_one_error_and_closing_ends_all() -> None:
    others = {process.pid for process in multiprocessing.active_children()}
    load = partial(resolve_name, "time:sleep")
    with WorkerPool(1, load) as pool:
        assert pool.submit(operator.call, 0)() is None
        (process,) = [each for each in multiprocessing.active_children() if each.pid not in others]
        waiting = pool.submit(operator.call, 60)
        process.kill()
        with pytest.raises(ProcessLostError, match=r"^a worker process ended in the middle of its work$"):
            waiting()
        with pytest.raises(ProcessLostError):
            pool.submit(operator.call, 0)
    begun = time.monotonic()
    with WorkerPool(1, load) as pool:
        pool.submit(operator.call, 60)
    assert time.monotonic() - begun < 30  # its work is not waited for
    assert {process.pid for process in multiprocessing.active_children()} <= others


KILLED = """
import operator, os, signal
from translume.parallel import WorkerPool

if __name__ == "__main__":
    with WorkerPool(1, float) as pool:
        print(list(pool.map(operator.add, [1])), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    source = str(Path(translume.__file__).parents[1])
    done = subprocess.run(  # returns when no process holds the pipes; workers hold stderr
        [sys.executable, tmp_path / "killed.py"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.decode()) == (-signal.SIGKILL, "[1.0]\n")
