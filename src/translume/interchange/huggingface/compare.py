"""Compare a model with its counterpart in transformers: token ids and log-probabilities."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, AutoTokenizer
from transformers.utils import logging

from translume.checkpoint import Checkpoint, free
from translume.errors import TranslumeError
from translume.interchange.certificate import SENTENCES, Certificate, ForcedTargets, forced_targets, label_log_probs
from translume.interchange.huggingface.config import CONFIG, read_json
from translume.model.positions import encoding_class
from translume.text import Tokenizer

READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What transformers raises for truncated, empty or missing files."""
WINDOWS = 4
"""Number of random windows of sound that are compared."""


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


@torch.no_grad()
def compare_with_huggingface(checkpoint: Checkpoint, folder: Path) -> Certificate:
    """Compare our token ids and log-probabilities with those of the model in `folder`.

    Raises TranslumeError if ids differ, or log-probabilities too much. If the architecture in transformers has other
    position vectors than our model, ours are copied into it. The memory of the checkpoint's model is freed before
    theirs is loaded.
    """
    frames = bool(checkpoint.config.data.source.reader)
    tokenizer = _loaded(folder, AutoTokenizer)
    forced = forced_targets(checkpoint, WINDOWS if frames else SENTENCES)
    _compare_tokenizers(checkpoint, tokenizer, forced, folder)
    encodings = (checkpoint.model.encoder.embedding.positions, checkpoint.model.decoder.embedding.positions)
    tables = [None if each.table is None else each.table.detach().clone() for each in encodings]
    dtype = next(checkpoint.model.parameters()).dtype
    free(checkpoint.model)
    kind = AutoModelForSpeechSeq2Seq if frames else AutoModelForSeq2SeqLM
    theirs = _loaded(folder, kind, dtype=dtype, weights_only=True).eval()
    if read_json(folder / CONFIG).get("tie_word_embeddings") is False:
        theirs.config.tie_word_embeddings = False  # transformers 5 reads true for every UMT5, and divides its states
    if type(theirs).__name__ not in encoding_class(checkpoint.config.model.positions).huggingface:
        for table, side in zip(tables, (theirs.model.encoder, theirs.model.decoder), strict=True):
            side.embed_positions.weight.copy_(table)
    log_probs = []
    for source, target, labels in forced.examples(checkpoint):
        read, written = map(torch.from_numpy, (source, target))
        given = {"input_features": read.mT.to(dtype)} if frames else {"input_ids": read}
        log_probs.append(label_log_probs(theirs(**given, decoder_input_ids=written).logits, labels))
    return forced.compare(log_probs, "transformers", folder)


def _loaded(folder: Path, kind: Any, **options: Any) -> Any:
    """Load the model or the tokenizer of a folder with transformers."""
    with suppress_transformers_output():
        try:
            return kind.from_pretrained(str(folder), local_files_only=True, **options)
        except READ_ERRORS as error:
            first = str(error).strip().splitlines()[:1]
            raise TranslumeError(
                f"{folder}: transformers cannot read it ({type(error).__name__}: {''.join(first)}), "
                "expected a folder that it loads, tokenizer_config.json included"
            ) from error


def _compare_tokenizers(checkpoint: Checkpoint, theirs: Any, forced: ForcedTargets, folder: Path) -> None:
    """Raise TranslumeError for a text to which the two tokenizers give different ids."""
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    # Every source begins with the tag of its language, or with a token that stands in its place.
    tagged = checkpoint.config.model.language_tags == "target" or "" in source.languages
    tags = [source.languages[getattr(theirs, "src_lang", None) or ""]] if tagged else []
    sides = [(source, forced.sources, "text", tags)]
    if target is not source:
        sides.append((target, forced.targets, "text_target", []))
    if forced.frames:
        sides = [(target, forced.targets, "text", [])]
    for tokenizer, rows, argument, prefix in sides:
        eos = [] if forced.frames else [tokenizer.specials.eos]
        for text in _texts(tokenizer, rows):
            options = {"add_special_tokens": not forced.frames, "split_special_tokens": True}
            read = theirs(**{argument: text}, **options)["input_ids"]
            if read != (ours := [*prefix, *tokenizer.encode(text), *eos]):
                raise TranslumeError(f"{folder}: transformers reads {text!r} as the ids {read}, the model as {ours}")


def _texts(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Decode random ids, without texts that contain replacement characters or special tokens."""
    special = {tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos}
    texts = [tokenizer.decode(row) for row in rows]
    return [text for text in texts if "\ufffd" not in text and not set(tokenizer.encode(text)) & special]
