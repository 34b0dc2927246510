"""Shared test setup: the folder of real data, Hypothesis profiles, and the number of torch threads."""

import errno
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from translume import atomic

from .warm_python import start

# torch reads this when it is first imported, so tests without torch need not import it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(1)

# A shell that starts the tests in the background, or nohup, has them ignore signals, which their commands inherit.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Files must survive a power failure, which no test simulates; on some disks, waiting for them takes a minute in all.
os.fsync = lambda file: None

settings.register_profile(
    "translume", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("translume"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "translume")

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)


def pytest_collection_finish() -> None:
    """Exclude what collection has created from garbage collection, which takes a twentieth of the time otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real data: TRANSLUME_DATA if it is set, otherwise `shared/data` beside the checkout."""
    named = os.environ.get("TRANSLUME_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder (set TRANSLUME_DATA to one)")
    return folder


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Path]:
    """Return a program that does what `python` does in less time: it forks a process that has imported torch."""
    with tempfile.TemporaryDirectory() as folder, start(Path(folder)) as program:
        yield program


@pytest.fixture(scope="module")
def warm_processes(warm_python: Path) -> Iterator[None]:
    """Let `multiprocessing` start its processes by `warm_python`."""
    multiprocessing.set_executable(str(warm_python))
    yield
    multiprocessing.set_executable(sys.executable)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """Simulate a full disk while the context lasts: half of the data is written to a file."""
    write = atomic.write

    def half(path: Path, chunks: Iterable[bytes | memoryview], **named: Any) -> None:
        content = b"".join(chunks)
        write(path, [content[: len(content) // 2]], **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextmanager
    def full() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "write", half)
            yield

    return full


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a Chromium browser, one per module because it keeps an event loop in the thread of the tests."""
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install translume[dev]")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: `make browser` installs it")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page from a file; at the end, check that it raised no error and made no network request."""
    faults: list[str] = []
    tabs: list[Any] = []

    def opened(html: str, width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        path = tmp_path / f"{len(tabs)}.html"
        path.write_text(html, encoding="utf-8")
        tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        tab.on("console", lambda message: faults.append(message.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
        tab.goto(path.as_uri())
        tabs.append(tab)
        return tab

    yield opened
    assert faults == []
    for tab in tabs:
        tab.close()
