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
def compare_with_huggingface(checkpoint: Checkpoint, folder: Path, tokenizers: Sequence[Path] = ()) -> Certificate:
    """Compare our token ids and log-probabilities with those of the model in `folder`.

    tokenizers: as in `read_huggingface`.
    Raises TranslumeError if ids differ, or log-probabilities too much. If the architecture in transformers has other
    position vectors than our model, ours are copied into it. The memory of the checkpoint's model is freed before
    theirs is loaded.
    """
    frames = bool(checkpoint.config.data.source.reader)
    theirs = [load_tokenizer(each) for each in tokenizers or (folder,)]
    forced = forced_targets(checkpoint, WINDOWS if frames else SENTENCES)
    _compare_tokenizers(checkpoint, theirs, forced, folder)
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
        logits = theirs(**given, decoder_input_ids=written, use_cache=False).logits  # FSMT's mask is causal only then
        log_probs.append(label_log_probs(logits, labels))
    return forced.compare(log_probs, "transformers", folder)


def _compare_tokenizers(checkpoint: Checkpoint, theirs: Sequence[Any], forced: ForcedTargets, folder: Path) -> None:
    """Raise TranslumeError for a text to which the tokenizers give different ids.

    theirs: one, or those of source and target.
    """
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    sides = [(source, theirs[0], forced.sources, "text")]
    if forced.frames:
        sides = [(target, theirs[0], forced.targets, "text")]
    elif len(theirs) > 1:
        sides.append((target, theirs[-1], forced.targets, "text"))
    elif target is not source and isinstance(theirs[0], transformers.MarianTokenizer):
        sides.append((target, theirs[0], forced.targets, "text_target"))
    for tokenizer, peer, rows, argument in sides:
        around = not forced.frames and (tokenizer is source or argument == "text_target")  # adds special tokens
        eos = tokenizer.specials.source_end if around else ()
        begin = peer(**{argument: ""})["input_ids"][:1] if around else []
        prefix = [id_ for id_ in begin if id_ in tokenizer.languages.values()]  # every source begins with a tag
        for text in _texts(tokenizer, rows):
            options = {"add_special_tokens": around, "split_special_tokens": True}
            read = peer(**{argument: text}, **options)["input_ids"]
            if read != (ours := [*prefix, *tokenizer.encode(text), *eos]):
                raise TranslumeError(f"{folder}: transformers reads {text!r} as the ids {read}, the model as {ours}")


def _texts(tokenizer: Tokenizer, rows: Sequence[Sequence[int]]) -> list[str]:
    """Decode random ids, without texts that contain replacement characters or special tokens."""
    special = {tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos}
    texts = [tokenizer.decode(row) for row in rows]
    return [text for text in texts if "\ufffd" not in text and not set(tokenizer.encode(text)) & special]
