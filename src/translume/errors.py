"""The exceptions that Translume raises deliberately.

The message of a `TranslumeError` is one line: the place, the value found, the value expected and, for a misspelt name,
the nearest valid one. The command line prints it without a traceback and exits with code 1.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TranslumeError(Exception):
    """Base class of all deliberate errors. The message is one line."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the attributes, whatever the parameters of a subclass's constructor."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TranslumeError], args: tuple[object, ...]) -> TranslumeError:
    return kind.__new__(kind, *args)


class SettingsError(TranslumeError):
    """A setting is unknown, missing, of the wrong type or out of range."""


class DataError(TranslumeError):
    """A file has invalid content, or cannot be read or written."""


class DocumentError(DataError):
    """A document (docx, HTML, subtitles, text) cannot be read."""


class ModelFolderError(TranslumeError):
    """A folder is not a model, is damaged, or was written by a newer Translume."""


class TrainingError(TranslumeError):
    """Training cannot continue: the loss is not finite, the folder is in use, or settings have changed."""


class TranslationError(TranslumeError):
    """A text cannot be translated with the given settings."""


class StaleStateError(RuntimeError):
    """A decoder state was used after a later state had changed its buffers. Branch with `select` before."""


_PACKAGES = {
    "evaluate": "sacrebleu rapidfuzz",
    "train": "torch matplotlib",
    "serve": "fastapi starlette anyio uvicorn h11 limits python_multipart prometheus_client",
    "documents": "lxml pypdf charset_normalizer",
    "detect": "lingua",
    "metrics": "rouge_score",
    "ctranslate2": "ctranslate2",
    "export": "transformers huggingface_hub filelock yaml",
    "sentencepiece": "sentencepiece google google.protobuf",
    "moses": "sacremoses",
    "keras": "h5py",
    "onnx": "onnx onnx_ir onnxruntime onnxscript",
    "inspect": "captum",
    "track": "wandb mlflow",
    "cluster": "ray",
    "remote": "fsspec",
    "parquet": "pyarrow",
    "zstd": "zstandard",
    "audio": "soundfile",
    "image": "PIL",
    "demo": "babel",
    "tune": "optuna",
}
EXTRAS = {package: extra for extra, packages in _PACKAGES.items() for package in packages.split()}
"""The extra of Translume that installs each package outside its base, by the name that imports it."""


def not_installed(place: str, package: str) -> SettingsError:
    """Return the error of a command, an option or a file that needs a package of an extra."""
    extra = EXTRAS[package]
    return SettingsError(f"{place}: needs {package}, which is not installed; pip install 'translume[{extra}]'")


@contextmanager
def needed_by(place: str) -> Iterator[None]:
    """Raise SettingsError, with the extra to install, if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        package = name if name in EXTRAS else name.partition(".")[0]
        if name in ("fcntl", "resource"):
            raise SettingsError(f"{place}: needs Linux or macOS: found no {name}, which Windows lacks") from None
        if package not in EXTRAS:
            raise
        raise not_installed(place, package) from None


def reason_of(error: OSError) -> str:
    """Return why the system refused something."""
    if error.errno == errno.EFBIG:
        return "the file size limit is reached (ulimit -f)"
    return error.strerror or str(error)


@contextmanager
def refused(place: object, what: str, kind: type[TranslumeError] = DataError) -> Iterator[None]:
    """Raise an error such as "x.tsv: cannot be read: Permission denied" for an OSError of the block.

    place: what the message begins with.  what: "cannot be read" or the like.  kind: the class of the error.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{place}: {what}: {reason_of(error)}") from None


def expect_file(path: Path, expected: str) -> None:
    """Raise ModelFolderError if a file of a model is missing.  expected: what it is, in words."""
    if not path.is_file():
        raise ModelFolderError(f"{path}: no such file, expected {expected}")


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word of which `word` is a misspelling, or an empty string."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1)), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'width'?" for a misspelt known word, otherwise "; known: …" with all known words."""
    names = list(known)
    close = closest(word, names)
    return f"; did you mean '{close}'?" if close else f"; known: {', '.join(names)}"


def check_known(place: str, found: object, known: Collection[Any], kind: type[TranslumeError] = SettingsError) -> None:
    """Raise an error, which names the nearest of those that are known, for anything else.

    place: what the message begins with.  kind: the class of the error.
    """
    if found not in list(known):  # a list, since what is found may have no hash
        raise kind(f"{place}: found {found!r}{nearest(str(found), known)}")


def similar(word: str, known: Iterable[str]) -> str:
    """Return "; nearest: en-de, en-da" with the five words, of many, that are most like `word`."""
    from difflib import get_close_matches

    return f"; nearest: {', '.join(get_close_matches(word, list(known), n=5, cutoff=0.0)) or 'none'}"


def refuse_unknown_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for the first keyword argument in `given` that is not in `known`, in the words of Python 3.13."""
    known = list(known)
    for name in given:
        if name not in known:
            close = closest(name, known)
            hint = f". Did you mean '{close}'?" if close else ""
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{hint}")


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name the nearest parameter when it gets an unknown keyword argument, as Python 3.13 does."""
    known = [each.name for each in signature(function).parameters.values() if each.kind != each.POSITIONAL_ONLY]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown_keywords(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return checked
