"""calibration.json: the temperature fitted to a model's weights."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translume.checkpoint.folder import FolderLock, Manifest, commit, read_committed
from translume.errors import ModelFolderError

CALIBRATION = "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Temperature:
    """A temperature that calibrates a model's probabilities: p ** (1/value), renormalised.

    value: above 1 for an overconfident model.  tokens: target tokens it was fitted to, end marks counted.
    nll_before, nll: nats per token on these, at temperature 1 and at `value`.
    """

    value: float
    tokens: int
    nll_before: float
    nll: float

    def __str__(self) -> str:
        """Return one line in the format of a score."""
        return (
            f"temperature|fitted by:nll|forced:yes|tokens:{self.tokens} = {self.value:.4f} "
            f"(nll per token {self.nll:.4f}, {self.nll_before:.4f} before)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the temperature for JSON."""
        return {"value": self.value, "tokens": self.tokens, "nll_before": self.nll_before, "nll": self.nll}


def read_temperature(folder: Path, manifest: Manifest, weights: str) -> Temperature | None:
    """Return the temperature in a folder; None if none was fitted to the weights with the digest `weights`.

    Raises ModelFolderError if the file is damaged.
    """
    if CALIBRATION not in manifest.files:
        return None
    content = read_committed(folder, manifest, CALIBRATION)
    place = folder / manifest.files[CALIBRATION].file
    try:
        values = json.loads(content)
        found = Temperature(
            value=float(values["value"]),
            tokens=int(values["tokens"]),
            nll_before=float(values["nll_before"]),
            nll=float(values["nll"]),
        )
        fitted_to = str(values["weights"])
    except (ValueError, KeyError, TypeError):
        raise ModelFolderError(f"{place}: damaged: not a temperature as Translume writes it") from None
    if not 0.0 < found.value < math.inf:
        raise ModelFolderError(f"{place}: value: found {found.value}, expected a number above 0")
    return found if fitted_to == weights else None


def store_temperature(folder: Path | str, temperature: Temperature, weights: str) -> None:
    """Commit the temperature fitted to the weights with the digest `weights` (`Checkpoint.digest`).

    Raises ModelFolderError if the folder holds other weights by now or cannot be written, TrainingError if a process
    trains in it.
    """
    folder = Path(folder)
    Manifest.read(folder)  # before the lock would make a folder
    with FolderLock(folder):
        present = Manifest.read(folder).files.get("weights.safetensors")
        if present is None or present.sha256 != weights:
            raise ModelFolderError(f"{folder}: its weights changed while the temperature was fitted; nothing written")
        text = json.dumps({**temperature.to_dict(), "weights": weights}, indent=1) + "\n"
        commit(folder, {CALIBRATION: text.encode()})
