"""The teacher of a run (`training.teacher`), loaded from its folder."""

from dataclasses import dataclass
from pathlib import Path

import torch

from translume.checkpoint import AnyCheckpoint, Manifest, load_any, model_folder, own_file
from translume.errors import SettingsError
from translume.model.head import Teacher
from translume.tasks import task_of
from translume.training.resume import ModelDescription


@dataclass(frozen=True, slots=True)
class TeacherModel:
    """A teacher and the digest of its weights; None and "" if the settings name none."""

    teacher: Teacher | None
    digest: str


def load_teacher(model: ModelDescription, device: torch.device) -> TeacherModel:
    """Load the model that `training.teacher` names, in evaluation mode, onto a device.

    Raises SettingsError if it has another target vocabulary than the run's model, fewer positions, or a head without a
    distribution to teach.
    """
    settings = model.config.training
    if not settings.teacher:
        return TeacherModel(None, "")
    place = f"training.teacher: {settings.teacher}"
    teacher = load_any(model_folder(settings.teacher), device=str(device))
    _refuse_other_vocabularies(teacher, model, place)
    if not teacher.model.head.normalised:
        kind = teacher.config.model.head.kind
        raise SettingsError(f"{place} has model.head.kind = '{kind}', whose decisions are not a distribution")
    sides = zip(teacher.config.model.positions_of_sides, model.config.model.positions_of_sides, strict=True)
    for setting, (longest, wanted) in zip(("max_positions", "encoder.max_positions"), reversed([*sides]), strict=True):
        if longest < wanted:
            raise SettingsError(
                f"{place} reads at most {longest} positions, expected model.{setting} = {longest} or less"
            )
    teacher.model.eval().requires_grad_(requires_grad=False)
    return TeacherModel(Teacher(teacher.model, settings.teacher_share), teacher.digest)


def _refuse_other_vocabularies(teacher: AnyCheckpoint, model: ModelDescription, place: str) -> None:
    folder = model_folder(model.config.training.teacher)
    task, other = task_of(model.config), task_of(teacher.config)
    if other is not task:
        raise SettingsError(f"{place} is a {other.model}, expected a {task.model}, as data.task = '{task.name}' trains")
    if teacher.config.data.source != model.config.data.source:
        raise SettingsError(f"{place} has another data.source, expected the same")
    tags, own = (each.model.language_tags for each in (teacher.config, model.config))
    if tags != own:
        raise SettingsError(f"{place} has model.language_tags = '{tags}', expected '{own}'")
    if teacher.source_tokenizer.digest != model.source.digest:
        raise SettingsError(f"{place} has other source tokens, expected tokenizer.path = '{_file(folder, 'source')}'")
    if teacher.target.digest != model.target.digest:
        keep = task.keep_target.format(file=_file(folder, "target"), count=len(model.target))
        raise SettingsError(f"{place} has other {task.target}, expected {keep}")


def _file(folder: Path, side: str) -> Path:
    """Return the file of a side's tokenizer in a model folder."""
    manifest = Manifest.read(folder)
    shared, own = (own_file(manifest, f"{name}_settings.json") for name in ("tokenizer", side))
    return folder / manifest.files[shared if shared in manifest.files else own].file
