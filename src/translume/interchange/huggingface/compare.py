"""Compare a model with its counterpart in transformers: token ids and log-probabilities."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from translume.checkpoint import Checkpoint, free
from translume.errors import TranslumeError
from translume.interchange.certificate import SENTENCES, Certificate, ForcedTargets, forced_targets, label_log_probs
from translume.interchange.huggingface.config import CONFIG, read_json
from translume.interchange.huggingface.loading import load_tokenizer, loaded
from translume.interchange.huggingface.reader import read_family
from translume.model.positions import encoding_class
from translume.text import Tokenizer

WINDOWS = 4
"""Number of random windows of sound that are compared."""


@torch.no_grad()
def compare_with_huggingface(checkpoint: Checkpoint, folder: Path) -> Certificate:
    """Compare our token ids and log-probabilities with those of the model in `folder`.

    Raises TranslumeError if ids differ, or log-probabilities too much. If the architecture in transformers has other
    position vectors than our model, ours are copied into it. The memory of the checkpoint's model is freed before
    theirs is loaded.
    """
    frames = bool(checkpoint.config.data.source.reader)
    tokenizer = load_tokenizer(folder)
    forced = forced_targets(checkpoint, WINDOWS if frames else SENTENCES)
    _compare_tokenizers(checkpoint, tokenizer, forced, folder)
    encodings = (checkpoint.model.encoder.embedding.positions, checkpoint.model.decoder.embedding.positions)
    tables = [None if each.table is None else each.table.detach().clone() for each in encodings]
    dtype = next(checkpoint.model.parameters()).dtype
    free(checkpoint.model)
    family, _ = read_family(folder)
    kind = getattr(transformers, family.loader)
    theirs = loaded(folder, partial(kind.from_pretrained, dtype=dtype, weights_only=True)).eval()
    theirs = family.mended(theirs)
    if read_json(folder / CONFIG).get("tie_word_embeddings") is False:
        theirs.config.tie_word_embeddings = False  # transformers 5 reads true for every UMT5, and divides its states
    if type(theirs).__name__ not in encoding_class(checkpoint.config.model.positions).huggingface:
        for table, side in zip(tables, (theirs.model.encoder, theirs.model.decoder), strict=True):
            side.embed_positions.weight.copy_(table)
    log_probs = []
    for source, target, labels in forced.examples(checkpoint):
        read, written = map(torch.from_numpy, (source, target))
        given = family.inputs(read.to(dtype) if frames else read, checkpoint.config.data.source)
        log_probs.append(label_log_probs(theirs(**given, decoder_input_ids=written).logits, labels))
    return forced.compare(log_probs, "transformers", folder)


def _compare_tokenizers(checkpoint: Checkpoint, theirs: Any, forced: ForcedTargets, folder: Path) -> None:
    """Raise TranslumeError for a text to which the two tokenizers give different ids."""
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    sides = [(source, forced.sources, "text")]
    if target is not source:
        sides.append((target, forced.targets, "text_target"))
    if forced.frames:
        sides = [(target, forced.targets, "text")]
    for tokenizer, rows, argument in sides:
        eos = [] if forced.frames else [tokenizer.specials.eos]
        begin = [] if forced.frames else theirs(**{argument: ""})["input_ids"][:1]
        prefix = [id_ for id_ in begin if id_ in tokenizer.languages.values()]  # every source begins with a tag
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
