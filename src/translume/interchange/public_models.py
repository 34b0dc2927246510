"""The list of public models, `models.toml`: what the page of each said when it was read."""

import tomllib
from dataclasses import dataclass
from datetime import date
from importlib.resources import files

from translume.errors import SettingsError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A model; what its page does not say is empty.

    name: what a command takes as MODEL.  task: the tag of the page.  source, target: codes of languages.
    languages: for a model of many, how many the page counts.  size: of the file of weights.
    page: what was read.  read: when.
    """

    name: str
    task: str
    source: str = ""
    target: str = ""
    languages: str = ""
    size: str = ""
    licence: str = ""
    page: str
    read: date


def public_models(task: str = "", source: str = "", target: str = "") -> list[PublicModel]:
    """Return the models of a task, from a language, into one; an empty text is any.

    Models of many languages are among those of each language, since the pages only count them.
    Raises SettingsError for a task that no model has.
    """
    text = (files("translume.interchange") / "models.toml").read_text(encoding="utf-8")
    models = [PublicModel(**row) for row in tomllib.loads(text)["model"]]
    tasks = dict.fromkeys(model.task for model in models)
    if task and task not in tasks:
        raise SettingsError(f"--task: found {task!r}{nearest(task, tasks)}")
    return [
        model
        for model in models
        if task in ("", model.task)
        and (model.languages or (source in ("", model.source) and target in ("", model.target)))
    ]
