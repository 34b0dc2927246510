"""Compare a model with its counterpart in transformers: token ids and log-probabilities."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, AutoTokenizer
from transformers.utils import logging

from translume.checkpoint import Checkpoint, free
from translume.errors import TranslumeError
from translume.interchange.certificate import Certificate, ForcedTargets, forced_targets
from translume.model.positions import encoding_class
from translume.text import Tokenizer

READ_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What transformers raises for truncated, empty or missing files."""
TOLERANCE = 1e-3
"""Largest accepted |Δ log p| of a token, in nats."""


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


def compare_with_huggingface(checkpoint: Checkpoint, folder: Path) -> Certificate:
    """Compare our log-probabilities with those of the model in `folder`. Raises TranslumeError if they differ too much.

    If the architecture in transformers has other position vectors than our model, ours are copied into it. The memory
    of the checkpoint's model is freed before theirs is loaded.
    """
    if checkpoint.config.data.source.reader:
        return _compare_speech(checkpoint, folder)
    tokenizer = _loaded(folder, AutoTokenizer)
    forced = forced_targets(checkpoint)
    tags = source_tags(tokenizer, checkpoint)
    for text in _texts(checkpoint.source_tokenizer, forced.sources):
        found = tokenizer(text, split_special_tokens=True)["input_ids"]
        _compare_ids(folder, text, found, checkpoint.source_tokenizer, tags)
    if checkpoint.target_tokenizer is not checkpoint.source_tokenizer:
        for text in _texts(checkpoint.target_tokenizer, forced.targets):
            found = tokenizer(text_target=text, split_special_tokens=True)["input_ids"]
            _compare_ids(folder, text, found, checkpoint.target_tokenizer)
    encodings = (checkpoint.model.encoder.embedding.positions, checkpoint.model.decoder.embedding.positions)
    positions = [None if each.table is None else each.table.detach().clone() for each in encodings]
    free(checkpoint.model)
    theirs = _loaded(folder, AutoModelForSeq2SeqLM, dtype=torch.float32, weights_only=True).eval()
    if type(theirs).__name__ not in encoding_class(checkpoint.config.model.positions).huggingface:
        _copy_positions(positions, theirs)
    return _accepted(certificate_of(checkpoint, theirs, forced), folder)


def _accepted(certificate: Certificate, folder: Path) -> Certificate:
    """Return a certificate. Raises TranslumeError if the two models differ too much."""
    if certificate.difference > TOLERANCE:
        raise TranslumeError(
            f"{folder}: the imported model differs from transformers' by {certificate.difference:.2g} nats a token, "
            f"expected at most {TOLERANCE}"
        )
    return certificate


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


WINDOWS = 4
"""Number of random windows of sound that are compared."""


@torch.no_grad()
def _compare_speech(checkpoint: Checkpoint, folder: Path) -> Certificate:
    """Compare log-probabilities of random targets for random windows of sound."""
    tokenizer, ours = _loaded(folder, AutoTokenizer), checkpoint.target_tokenizer
    forced = forced_targets(checkpoint, WINDOWS)
    for text in _texts(ours, forced.targets):
        found = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if found != ours.encode(text):
            raise TranslumeError(
                f"{folder}: transformers reads {text!r} as the ids {found}, the imported model as {ours.encode(text)}"
            )
    free(checkpoint.model)
    theirs = _loaded(folder, AutoModelForSpeechSeq2Seq, dtype=torch.float32, weights_only=True).eval()
    log_probs = []
    for frames, target in zip(forced.frames, forced.targets, strict=True):
        given = torch.tensor([[ours.specials.bos, *target]])
        logits = theirs(input_features=frames.mT, decoder_input_ids=given).logits
        labels = torch.tensor([*target, ours.specials.eos])
        log_probs.append(logits[0].float().log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist())
    return _accepted(forced.certificate(log_probs, "float32"), folder)


@torch.no_grad()
def _copy_positions(tables: Sequence[Tensor | None], theirs: Any) -> None:
    for table, side in zip(tables, (theirs.model.encoder, theirs.model.decoder), strict=True):
        side.embed_positions.weight.copy_(table)


def _texts(tokenizer: Tokenizer, rows: list[list[int]]) -> list[str]:
    """Decode random ids, without texts that contain replacement characters or special tokens."""
    texts = [tokenizer.decode(row) for row in rows]
    return [text for text in texts if "\ufffd" not in text and not set(tokenizer.encode(text)) & _special(tokenizer)]


def _special(tokenizer: Tokenizer) -> set[int]:
    specials = tokenizer.specials
    return {specials.pad, specials.bos, specials.eos}


def source_tags(theirs: Any, checkpoint: Checkpoint) -> list[int]:
    """Return the tag of their source language, with which they begin every text."""
    if checkpoint.config.model.language_tags != "target":
        return []
    return [checkpoint.source_tokenizer.languages[getattr(theirs, "src_lang", None) or ""]]


def _compare_ids(folder: Path, text: str, found: list[int], tokenizer: Tokenizer, tags: Sequence[int] = ()) -> None:
    wanted = [*tags, *tokenizer.encode(text), tokenizer.specials.eos]
    if found != wanted:
        raise TranslumeError(
            f"{folder}: transformers reads {text!r} as the ids {found}, the imported model as {wanted}"
        )


@torch.no_grad()
def certificate_of(checkpoint: Checkpoint, theirs: Any, forced: ForcedTargets) -> Certificate:
    """Compare the teacher-forced log-probabilities of their model with ours."""
    source_end = checkpoint.source_tokenizer.specials.eos
    specials = checkpoint.target_tokenizer.specials
    found = []
    for source, target in zip(forced.sources, forced.targets, strict=True):
        logits = theirs(
            input_ids=torch.tensor([[*source, source_end]]), decoder_input_ids=torch.tensor([[specials.bos, *target]])
        ).logits
        labels = torch.tensor([*target, specials.eos])
        found.append(logits[0].float().log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist())
    return forced.certificate(found, "float32")
