"""What `translume evaluate` does about calibration: fit a temperature, measure, draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from translume.atomic import check_writable
from translume.cli.options import calibrate, changed
from translume.cli.terminal import Meter, note

if TYPE_CHECKING:
    from translume.checkpoint import Temperature
    from translume.evaluation import Calibration
    from translume.evaluation.classification import ClassScores
    from translume.translator import Translator

NOWHERE = Path("-")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, by the name that JSON gives it."""

    name: str
    value: "Temperature | Calibration"

    def __str__(self) -> str:
        return str(self.value)

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON knows it."""
        return {self.name: self.value.to_dict()}


def check_picture() -> None:
    """Return if what --calibration asks for could be drawn; else raise DataError before anything is computed."""
    picture = calibrate().picture
    if picture is not None and picture != NOWHERE:
        from translume.drawing.charts import new_figure

        new_figure(picture, width=1, height=1)
        check_writable(picture)


def calibrated(
    translator: "Translator", model: Path, sources: Sequence[str], references: Sequence[str]
) -> "tuple[Translator, list[Finding]]":
    """The translator with the temperature that --fit-temperature fitted, and what was found on the way.

    --calibration measures the model as it is, and beside it with a temperature that was fitted just now or is in use.
    """
    from translume.checkpoint import store_temperature
    from translume.evaluation import fit_temperature, measure_calibration
    from translume.translator import Translator

    wanted = calibrate()
    findings = []
    if wanted.fit:
        with Meter("fitting a temperature", unit="tokens") as meter:
            temperature = fit_temperature(translator, sources, references, progress=meter.advance)
        store_temperature(model, temperature, translator.checkpoint.digest)
        translator = Translator(replace(translator.checkpoint, temperature=temperature))
        findings.append(Finding("fitted", temperature))
        note(f"{model}: temperature stored; used where --calibrated or decoding.calibrated = true asks for it")
    if wanted.picture is None:
        return translator, findings
    measured = []
    for value in _temperatures(translator, wanted.fit):
        with Meter("measuring calibration", unit="tokens") as meter:
            found = measure_calibration(translator, sources, references, temperature=value, progress=meter.advance)
        measured.append(found)
        findings.append(Finding("calibration", found))
    if wanted.picture != NOWHERE:
        from translume.drawing.charts import draw_reliability

        draw_reliability(measured, wanted.picture, title=str(model))
        note(f"{wanted.picture}: written")
    return translator, findings


def draw_classes(scores: "ClassScores", *, title: str) -> None:
    """Draw what --calibration asks for of a classifier, if anything."""
    picture = calibrate().picture
    if picture is not None and picture != NOWHERE:
        from translume.drawing.charts import draw_class_reliability

        draw_class_reliability(scores, picture, title=title)
        note(f"{picture}: written")


def _temperatures(translator: "Translator", fitted: bool) -> list[float]:
    stored = translator.checkpoint.temperature
    used = fitted or changed(translator.config, "evaluation", "decoding").decoding.calibrated
    return [1.0, stored.value] if used and stored is not None else [1.0]
