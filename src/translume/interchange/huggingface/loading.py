"""Load a model or a tokenizer with transformers."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from translume.errors import TranslumeError
from translume.text.imported import library_errors

READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What transformers raises for truncated, empty or missing files."""
TOKENIZER = "tokenizer.json"
BESIDE = ("tokenizer_config.json", "spiece.model", "source.spm", "vocab.json")
"""Files of which one is beside a tokenizer.json of a special class."""


@contextmanager
def suppress_transformers_output() -> Iterator[None]:
    """Suppress transformers' progress bars and warnings, such as its recommendation of sacremoses, which it ignores."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
            yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder as transformers loads it; a tokenizer.json alone is of no special class."""
    alone = (folder / TOKENIZER).exists() and not any((folder / name).exists() for name in BESIDE)
    return loaded(folder, (PreTrainedTokenizerFast if alone else AutoTokenizer).from_pretrained)


def loaded(folder: Path, load: Callable[..., Any]) -> Any:
    """Return what `from_pretrained` of a class makes of a folder. Raises TranslumeError if it cannot read it."""
    with suppress_transformers_output():
        try:
            with library_errors():
                return load(str(folder), local_files_only=True)
        except READ_ERRORS as error:
            first = str(error).strip().splitlines()[:1]
            raise TranslumeError(
                f"{folder}: transformers cannot read it ({type(error).__name__}: {''.join(first)}), "
                "expected a folder that it loads, tokenizer_config.json included"
            ) from error
