"""Read a model from a folder of transformers as a model of ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from translume.checkpoint import Checkpoint, adopt, build_model, trim_memory, without_values
from translume.config import Config
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.huggingface.config import (
    CONFIG,
    ForeignConfig,
    build_config,
    read_json,
)
from translume.interchange.huggingface.families import Family, family_named
from translume.interchange.huggingface.weights_files import StoredWeights, read_weights

Sinusoids = Literal["hf", "marian"]


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
    place = folder / CONFIG
    found = read_json(place)
    family = family_named(place, found)
    if positions not in family.sinusoids:
        raise SettingsError(
            f"--positions {positions}: found {family.architecture}, expected MarianMTModel, which Marian trains"
        )
    foreign = family.read_config(place, found)
    path, stored = read_weights(folder)
    values: dict[str, Any] = {
        "data": family.data_values(foreign), "model": family.model_values(foreign, stored), "decoding": {},
    }  # fmt: skip
    config = build_config(place, values)
    source, target = family.tokenizers(folder, foreign)
    trim_memory()  # before the weights are read, and after their copies
    weights = _weights(path, stored, config, family, foreign)
    trim_memory()
    if positions == "marian":
        values["model"]["positions"] = "marian"
    values["decoding"], notes = family.decoding_values(folder, foreign, source)
    if source.languages:
        values["model"]["language_tags"] = family.language_tags
    values["tokenizer"] = {**source.settings.model_dump(), "shared": source is target}
    config = build_config(place, values)
    with without_values():
        model = build_model(config.model, len(source), len(target), config.data.source)
    adopt(model, weights)
    checkpoint = Checkpoint(config=config, model=model.eval(), source_tokenizer=source, target_tokenizer=target)
    return ForeignModel(checkpoint=checkpoint, notes=tuple(notes))


def _weights(
    path: Path, stored: StoredWeights, config: Config, family: Family, foreign: ForeignConfig
) -> dict[str, Tensor]:
    """Return our state dict. Raises ModelFolderError naming the first tensor that is unknown or of another shape."""
    settings = config.model
    with without_values():
        fresh = build_model(settings, foreign.vocabulary, foreign.target_vocabulary, config.data.source)
    expected, computed = family.weights_to(fresh, settings), family.computed(settings)
    for name, tensor in stored.items():
        if name in computed:
            continue
        if name not in expected:
            raise ModelFolderError(f"{path}: holds {name}, which a {family.architecture} of config.json does not have")
        if tensor.shape != expected[name].shape:
            raise ModelFolderError(
                f"{path}: {name} is {list(tensor.shape)}, expected {list(expected[name].shape)} by config.json"
            )
    try:
        return family.weights_from(stored.copied(), settings)
    except ModelFolderError as error:
        raise ModelFolderError(f"{path}: {error}") from None
