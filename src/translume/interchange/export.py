"""Export a model folder to another toolkit, and compare the export with the original."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from translume.checkpoint import Checkpoint, load_checkpoint, model_folder
from translume.errors import SettingsError, TranslumeError, check_known, needed_by, suggest_keywords
from translume.interchange.certificate import Certificate
from translume.interchange.importing import new_folder, require_new
from translume.parts import find

TARGETS: dict[str, Any] = {
    "argos": "translume.interchange.argos:write_argos",
    "ctranslate2": "translume.interchange.ctranslate2:write_ctranslate2",
    "huggingface": "translume.interchange.huggingface.writer:write_huggingface",
    "marian": "translume.interchange.marian.writer:write_marian",
    "onnx": "translume.interchange.onnx.writer:write_onnx",
    "translume": "translume.interchange.certificate:write_translume",
    "web": "translume.interchange.web.writer:write_web",
}
"""Functions that write each target: (checkpoint, empty folder, dtype) -> Certificate."""

Writer = Callable[..., Certificate]


@suggest_keywords
def export(model: Path | str, target: str, folder: Path | str, *, dtype: str = "") -> Certificate:
    """Export `model` for `target` into the new folder, and return how far the reloaded export is from the original.

    dtype: the format of the weights: "float32", "float16", "bfloat16", "int16" or "int8"; by default
    "int8" for "web", and "float32" for the others.
    Raises SettingsError for an unknown target, a target that is not installed, or a setting that it cannot express;
    TranslumeError if the folder is not empty, a weight is not a finite number, or the export differs too much. Then
    nothing is written.
    """
    folder = Path(folder)
    write = _writer(target)
    require_new(folder)
    checkpoint = load_checkpoint(model_folder(model), device="cpu", dtype="fp32")
    if target != "translume" and (setting := checkpoint.config.without_tokens):
        raise SettingsError(
            f"export: {model}: found {setting}, which only Translume reads; expected a model that reads tokens of text"
        )
    if checkpoint.config.data.context.used and target != "translume":
        raise SettingsError(f"export: {model}: found data.context, which only Translume reads; expected none")
    _refuse_damaged_weights(checkpoint, model)
    with new_folder(folder) as unfinished:
        unfinished.mkdir()
        try:
            return write(checkpoint, unfinished, dtype or ("int8" if target == "web" else "float32"))
        except TranslumeError as error:
            raise type(error)(str(error).replace(str(unfinished), str(folder))) from None


def _refuse_damaged_weights(checkpoint: Checkpoint, model: Path | str) -> None:
    """Raise TranslumeError for a weight that is not a finite number, before the comparison would find it."""
    for name, weights in checkpoint.arrays().items():
        damaged = weights[~np.isfinite(weights)]
        if len(damaged):
            raise TranslumeError(f"export: {model}: {name}: found {damaged[0]:g}, expected finite numbers")


def _writer(target: str) -> Writer:
    check_known("export", target, TARGETS)
    with needed_by("export"):
        writer: Writer = find("export", target)
    return writer
