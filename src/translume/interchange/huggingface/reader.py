"""Read a MarianMTModel or PegasusForConditionalGeneration from a folder of transformers as a model of ours."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint, build_model, read_tensors
from translume.config import ModelSettings
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.huggingface.config import (
    ForeignConfig,
    build_config,
    decoding_values,
    model_values,
    read_foreign_config,
)
from translume.interchange.huggingface.tokenizer import NAME, SOURCE, read_library_tokenizer, read_marian_tokenizers
from translume.interchange.huggingface.weights import (
    LOGIT_BIAS,
    POSITIONS,
    weights_from_marian,
    weights_from_pegasus,
    weights_to_marian,
    weights_to_pegasus,
)
from translume.model.positions import encoding_class
from translume.model.positions.added import sinusoids
from translume.text import Tokenizer

Sinusoids = Literal["hf", "marian"]

WEIGHTS = "model.safetensors"
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors.index.json", "tf_model.h5")
_ROUNDINGS = 4.0
"""Largest difference from sinusoids, in units of the dtype's epsilon, that does not count as learned positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignModel:
    """An imported model, and one line for each thing that was left out."""

    checkpoint: Checkpoint
    notes: tuple[str, ...]


def read_huggingface(folder: Path, positions: Sinusoids = "hf") -> ForeignModel:
    """Read the model in `folder`, with the sinusoids of transformers ("hf") or of Marian ("marian").

    Raises ModelFolderError for a missing file or weights of another shape, DataError for a damaged file, SettingsError
    naming the first setting that we cannot express.
    """
    foreign = read_foreign_config(folder)
    if positions == "marian" and foreign.architecture != "MarianMTModel":
        raise SettingsError(
            f"--positions marian: found {foreign.architecture}, expected MarianMTModel, which Marian trains"
        )
    path = _weights_file(folder)
    stored = dict(read_tensors(path))
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in stored.items()}
    bias = LOGIT_BIAS in state and bool(state[LOGIT_BIAS].any())
    learned = foreign.architecture != "MarianMTModel" and _learned(stored)
    decoding, notes = decoding_values(folder, foreign)
    values: dict[str, Any] = {
        "model": model_values(foreign, learned_positions=learned, bias=bias), "decoding": decoding,
    }  # fmt: skip
    config = build_config(foreign.place, values)
    weights = _weights(path, state, config.model, foreign)
    source, target = _tokenizers(folder, foreign)
    if positions == "marian":
        values["model"]["positions"] = "marian"
    shared = source is target
    values["tokenizer"] = {**source.settings.model_dump(), "shared": shared}
    config = build_config(foreign.place, values)
    model = build_model(config.model, len(source), len(target))
    model.load_state_dict(weights)
    checkpoint = Checkpoint(config=config, model=model.eval(), source_tokenizer=source, target_tokenizer=target)
    return ForeignModel(checkpoint=checkpoint, notes=tuple(notes))


def _weights_file(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    for name in _OTHER_WEIGHTS:
        if (folder / name).exists():
            raise ModelFolderError(
                f"{folder / name}: not read, expected {WEIGHTS} in one file; load the model in transformers and "
                "call save_pretrained(folder, max_shard_size='100GB')"
            )
    raise ModelFolderError(f"{path}: no such file, expected the weights as transformers saves them")


def _learned(stored: Mapping[str, Tensor]) -> bool:
    """Return whether the position tables that Pegasus stores are not sinusoids."""
    for table in (stored[name] for name in POSITIONS.values() if name in stored):
        if table.ndim == 2 and table.size(1) % 2 == 0 and table.is_floating_point():
            off = float((table.float() - sinusoids(table.size(0), table.size(1))).abs().max())
            if not off <= _ROUNDINGS * torch.finfo(table.dtype).eps:
                return True
    return False


def _weights(
    path: Path, state: Mapping[str, Tensor], settings: ModelSettings, foreign: ForeignConfig
) -> dict[str, Tensor]:
    """Return our state dict. Raises ModelFolderError naming the first tensor that is unknown or of another shape."""
    marian = foreign.architecture == "MarianMTModel"
    fresh = build_model(settings, foreign.vocabulary, foreign.target_vocabulary)
    expected = (weights_to_marian if marian else weights_to_pegasus)(fresh, settings)
    for name, tensor in state.items():
        if name in POSITIONS.values() and (marian or not encoding_class(settings.positions).trained):
            continue
        if name not in expected:
            raise ModelFolderError(f"{path}: holds {name}, which a {foreign.architecture} of config.json does not have")
        if tensor.shape != expected[name].shape:
            raise ModelFolderError(
                f"{path}: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)} by config.json"
            )
    try:
        return (weights_from_marian if marian else weights_from_pegasus)(state, settings)
    except ModelFolderError as error:
        raise ModelFolderError(f"{path}: {error}") from None


def _tokenizers(folder: Path, foreign: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    if (folder / SOURCE).exists():
        return read_marian_tokenizers(folder, foreign)
    if not (folder / NAME).exists():
        raise ModelFolderError(
            f"{folder}: no tokenizer, expected {SOURCE}, target.spm and vocab.json of Marian, "
            f"or the {NAME} of `translume export`"
        )
    tokenizer = read_library_tokenizer(folder)
    specials = tokenizer.specials
    for name, found, wanted in (
        ("pad_token_id", foreign.pad, specials.pad),
        ("decoder_start_token_id", foreign.bos, specials.bos),
        ("eos_token_id", foreign.eos, specials.eos),
        ("vocab_size", foreign.vocabulary, len(tokenizer)),
        ("decoder_vocab_size", foreign.target_vocabulary, len(tokenizer)),
    ):
        if found != wanted:
            raise SettingsError(f"{foreign.place}: {name}: found {found}, expected {wanted} by {NAME}")
    return tokenizer, tokenizer
