"""COMET (Rei et al. 2020), and COMET-Kiwi without references (Rei et al. 2022), computed by unbabel-comet.

The package needs older releases of NumPy and transformers than Translume, so a process of its own environment runs it.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock
from typing import Any

from translume.atomic import digest
from translume.config import EvaluationSettings
from translume.config.evaluation import CometSettings
from translume.errors import SettingsError, TranslumeError
from translume.evaluation.segment_metrics import Row, SegmentMetric
from translume.kernels.cpu import cache_folder

PACKAGES = ("unbabel-comet==2.2.7", "setuptools<81")
"""What the environment needs; older setuptools have pkg_resources, which torchmetrics imports."""
VARIABLE = "TRANSLUME_COMET_PYTHON"
WORKER = Path(__file__).with_name("comet_worker.py")
SILENCE_SECONDS = 1800.0
"""Longest time without an answer, while the worker loads a model or rates a batch."""
INSTALL = "`translume metrics install comet` prints the commands that make it"


def environment() -> Path:
    """Return the folder of the environment that `translume metrics install comet` makes."""
    return cache_folder() / "comet"


class CometWorker:
    """A process that loads a model of comet when it is first needed and rates rows. Threads may share it.

    It ends when its pipe is closed, so with this process.
    """

    def __init__(self, python: str, settings: CometSettings, model: str) -> None:
        self._python, self._settings, self._model = python, settings, model
        self._process: Any = None
        self._lock = Lock()

    def answer(self, rows: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
        """Return the answer of comet_worker.py to rows; for none, that about the model, with its "sha256".

        Raises TranslumeError if the process ends or gives no answer.
        """
        with self._lock:
            if self._process is None:
                self._start()
            return self._ask({"rows": rows}) if rows else self._facts

    def close(self, seconds: float = 0.0) -> str:
        """End the process, and return why it ended, or the last line that it printed."""
        process, self._process = self._process, None
        if process is None:
            return ""
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        code = process.returncode or 0
        process.kill()
        process.wait()
        self._pipe.close()
        with self._errors:
            self._errors.seek(0)
            last = " ".join(self._errors.read().decode(errors="replace").strip().rpartition("\n")[2].split())
        return f"killed by signal {-code}" if code < 0 else last

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # until the next process
        self._pipe, theirs = Pipe()
        number = theirs.fileno()
        # -I: neither this folder nor PYTHONPATH, which are for our own Python. A new session: without our Ctrl-C.
        command = [self._python, "-I", str(WORKER), str(number)]
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": self._errors, "stderr": self._errors}
        try:
            with theirs:
                self._process = subprocess.Popen(command, **streams, pass_fds=[number], start_new_session=True)
        except OSError as error:
            self._errors.close()
            raise SettingsError(f"evaluation.comet.python: {self._python}: {error.strerror}; {INSTALL}") from None
        facts = self._ask({**self._settings.model_dump(), "model": self._model})
        self._facts = {**facts, "sha256": digest(Path(facts["path"]))}

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question; end the process if there is none."""
        done = False
        try:
            self._pipe.send_bytes(json.dumps(question).encode())
            answer: dict[str, Any] = {"busy": True}
            while "busy" in answer:
                if not self._pipe.poll(SILENCE_SECONDS):
                    raise TimeoutError(f"gave no answer for {SILENCE_SECONDS:g} seconds")
                answer = json.loads(self._pipe.recv_bytes())
            done = True
            return answer
        except (OSError, ValueError, EOFError) as error:
            last = self.close(1.0 if isinstance(error, EOFError | ConnectionError) else 0.0)
            reason = str(error) if isinstance(error, TimeoutError) else f"ended: {last or 'without a message'}"
            hint = f"; {INSTALL}" if last.startswith("ModuleNotFoundError") else ""
            raise TranslumeError(f"comet: {self._model}: {self._python} {reason}{hint}") from None
        finally:
            if not done:  # also after Ctrl-C: a late answer must not be read as that of the next question
                self.close()


@cache
def _worker(python: str, settings: CometSettings, model: str, process: int) -> CometWorker:
    """Return the worker of a model.  process: this one, since a forked one must start its own."""
    return CometWorker(python, settings, model)


class Comet(SegmentMetric):
    """The mean score of a model of comet, in per cent: 100 times what `comet-score` prints.

    setting: the name, in [evaluation.comet], of the setting that names the model.
    """

    reads_sources = True

    def __init__(self, name: str, title: str, settings: CometSettings, setting: str, *, reads_references: bool) -> None:
        self.name, self.title, self.reads_references = name, title, reads_references
        self._model, self._settings, self._place = getattr(settings, setting), settings, f"evaluation.comet.{setting}"
        if not self._model.startswith("hf://") and not os.path.isfile(self._model):
            raise SettingsError(
                f"{self._place}: found '{self._model}', expected a file of comet, .ckpt, or hf://owner/name"
            )
        python = settings.python or os.environ.get(VARIABLE) or str(environment() / "bin" / "python")
        self._worker = _worker(python, settings, self._model, os.getpid())

    def definition(self) -> str:
        """Return the model, its digest, the number format and the version of comet. Loads the model."""
        facts = self._worker.answer()
        if self.reads_references and not facts["references"]:
            raise SettingsError(f"{self._place}: {self._model} reads no references: it is a model of 'comet-kiwi'")
        if facts["needed"] and not self.reads_references:
            raise SettingsError(f"{self._place}: {self._model} needs references: it is a model of 'comet'")
        path = Path(self._model).absolute()  # comet requires its settings in the folder above that of the checkpoint
        name = path.parent.parent.name if path.is_file() else self._model.removeprefix("hf://")
        model = f"model:{name}|sha256:{facts['sha256'][:16]}"
        return f"{model}|precision:{self._settings.precision}|comet:{facts['version']}"

    def compute(self, rows: Sequence[Row]) -> list[float]:
        """Return the scores in per cent."""
        sides = 2 + self.reads_references
        answer = self._worker.answer([row[:sides] for row in rows])
        self.cut = answer["cut"]
        return [100 * score for score in answer["scores"]]

    def close(self) -> None:
        """End the process of the model."""
        self._worker.close()


def comet(settings: EvaluationSettings) -> Comet:
    """Return COMET with the model of `evaluation.comet.model`."""
    return Comet("comet", "COMET", settings.comet, "model", reads_references=True)


def comet_kiwi(settings: EvaluationSettings) -> Comet:
    """Return COMET-Kiwi with the model of `evaluation.comet.kiwi_model`."""
    return Comet("comet-kiwi", "COMET-Kiwi", settings.comet, "kiwi_model", reads_references=False)
