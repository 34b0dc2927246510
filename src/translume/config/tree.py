"""The one tree of settings: a TOML file, a command line and a model folder all hold exactly this."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self

from translume.config.base import Settings
from translume.config.data import DataSettings
from translume.config.decoding import DecodingSettings, names_file
from translume.config.evaluation import EvaluationSettings
from translume.config.model import ModelSettings
from translume.config.reading import build, read_text, values_in
from translume.config.tokenizer import TokenizerSettings
from translume.config.toml import to_toml
from translume.config.training import TrainingSettings

PATHS = ("train_source", "train_target", "train", "valid_source", "valid_target", "valid")


class Config(Settings):
    """A run: three lifetimes of settings in one tree.

    `model` is what weights mean; `data`, `tokenizer`, `training` are provenance; `evaluation` and `decoding` are
    defaults that a call may replace.
    """

    format: int = 1
    """Version of the model folder's layout."""
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    decoding: DecodingSettings = DecodingSettings()

    @classmethod
    def read(cls, path: Path | str, overrides: Iterable[str] = ()) -> Self:
        """The settings in a TOML file, changed by `path=value` overrides; relative paths begin at the file's folder.

        Raises SettingsError naming the file and the setting, DataError if the file cannot be read.
        """
        path = Path(path)
        config = cls.parse(read_text(path), overrides, place=str(path))
        return config.relative_to(path.parent)

    @classmethod
    def parse(cls, text: str, overrides: Iterable[str] = (), *, place: str = "settings") -> Self:
        """The settings in TOML text; `${NAME}` and `${NAME:-default}` in strings are replaced from the environment."""
        return cls.build(values_in(text, place), overrides, place=place)

    @classmethod
    def build(cls, values: Mapping[str, Any], overrides: Iterable[str] = (), *, place: str = "settings") -> Self:
        """The settings in nested mappings."""
        config = build(cls, values, overrides, place)
        resolve_name("translume.tasks:check_settings")(config.data, config.model, config.training, place)
        return config

    @property
    def scoring(self) -> EvaluationSettings:
        """[evaluation] for the target language: what translations are measured by."""
        return self.evaluation.of_language(self.data.target_language)

    def change(self, *overrides: str) -> Self:
        """A copy with `path=value` overrides applied."""
        return self.build(self.model_dump(), overrides, place="--set")

    def relative_to(self, folder: Path) -> Self:
        """A copy whose relative paths begin at `folder`; those in [decoding], which models read, are absolute."""

        def moved(path: str) -> str:
            return str(folder / path) if path else ""

        data = self.data.model_copy(update={n: tuple(map(moved, getattr(self.data, n))) for n in PATHS})
        tokenizer = self.tokenizer.model_copy(
            update={n: moved(getattr(self.tokenizer, n)) for n in ("path", "target_path")}
        )
        model = self.model.model_copy(
            update={n: moved(getattr(self.model, n)) for n in ("pretrained_source", "pretrained_target")}
        )
        training = self.training.model_copy(update={"teacher": moved(self.training.teacher)})

        def read_anywhere(path: str) -> str:
            return str((folder / path).absolute()) if path else ""

        ban = tuple(f"@{read_anywhere(each[1:])}" if names_file(each) else each for each in self.decoding.ban)
        named = {name: read_anywhere(getattr(self.decoding, name)) for name in ("terminology", "vocabulary")}
        decoding = self.decoding.model_copy(update={**named, "ban": ban})
        return self.model_copy(
            update={"data": data, "tokenizer": tokenizer, "model": model, "training": training, "decoding": decoding}
        )

    def to_toml(self, *, comments: bool = False) -> str:
        """TOML text that `parse` reads back to an equal tree."""
        return to_toml(self, comments=comments)
