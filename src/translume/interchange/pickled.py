"""Read the files of torch.save without executing what is in them."""

import re
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch

from translume.errors import ModelFolderError


def load_pickled(path: Path, wanted: str, classes: Sequence[tuple[Callable[..., Any], str]] = ()) -> Any:
    """Return the value in a file, its tensors mapped into memory if the format allows, by torch's weights-only reader.

    classes: those that the file may name, "module.Class", each with the harmless one to build in its place.
    Raises ModelFolderError for a damaged file, and for one that names other classes or functions; wanted: what the
    message expects instead.
    """
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(classes)):
            # Protocol 2 or another: the reader checks every opcode whatever the number says.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            # Files of torch before 1.6 are not zip archives and cannot be mapped.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
    except UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        raise ModelFolderError(
            f"{path}: refused by torch's weights-only reader, which executes nothing: found "
            f"{refused[1] if refused else 'damaged or unknown data'}, expected {wanted}"
        ) from None
    except OSError as error:
        raise ModelFolderError(f"{path}: cannot be read: {error.strerror or error}") from None
    # torch raises any of these for truncated or empty files.
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: BaseException) -> ModelFolderError:
    """Return the error for a file that a library cannot read."""
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ModelFolderError(f"{path}: damaged: {reason}")
