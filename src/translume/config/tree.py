"""The settings of a run: reading TOML with overrides, and the tree of all groups."""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import escape, has_magic
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field, ValidationError, field_validator

from translume.config.base import RAISE_RAW, Names, Settings, as_tuple, explain, to_toml
from translume.config.data import PATHS, DataSettings
from translume.config.decoding import OF_LANGUAGE_MODELS, OF_SOURCES, DecodingSettings, names_file
from translume.config.evaluation import EvaluationSettings
from translume.config.model import ModelSettings
from translume.config.tokenizer import TokenizerSettings
from translume.config.training import TrainingSettings
from translume.errors import DataError, SettingsError
from translume.parts import load_parts, load_parts_of_parent, loaded

Tree = TypeVar("Tree", bound=Settings)
MARIAN_HINT = "; `translume docs from_marian` lists the settings of Marian"


def read_text(path: Path) -> str:
    """Return the text of a file. Raises DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors put a byte order mark before it
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"{path}: cannot be read: {reason}") from None


def parse_toml(text: str, place: str) -> dict[str, Any]:
    """Parse TOML text; `${NAME}` and `${NAME:-default}` in strings are replaced from the environment."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = MARIAN_HINT if place.endswith((".yml", ".yaml")) else ""
        if not hint and not place.endswith(".toml") and Path(place).is_file():
            hint = f"; `translume init {place}` proposes settings for a file of training data"
        raise SettingsError(f"{place}: not TOML: {error}{hint}") from None
    expanded: dict[str, Any] = _expanded(values, place)
    return expanded


def build(root: type[Tree], values: Mapping[str, Any], overrides: Iterable[str], place: str) -> Tree:
    """Build settings from nested mappings and `path=value` overrides. Raises SettingsError for the first wrong one."""
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    for assignment in overrides:
        override(tree, assignment)
    missing = _missing_modules(tree)
    try:
        return root.model_validate(tree, context=RAISE_RAW)
    except ValidationError as error:
        raise SettingsError(f"{place}: {explain(root, error)}{missing}") from None
    except SettingsError as error:  # of a table that has a class for each kind
        raise SettingsError(f"{place}: {error}{missing}") from None


def _missing_modules(tree: Mapping[str, Any]) -> str:
    """Return what to say of modules of parts that a model was made with and that were not imported; usually nothing.

    Warns of those that have changed since then.
    """
    plugins = tree.get("plugins")
    made_with = plugins.get("identities") if isinstance(plugins, dict) else None
    if not isinstance(made_with, dict) or not made_with:
        return ""
    import logging  # here, since most models have no such parts

    load_parts_of_parent()
    present = loaded()
    for name, identity in made_with.items():
        if present.get(name, identity) != identity:
            logging.getLogger(__name__).warning("%s: is %s, the model was made with %s", name, present[name], identity)
    lacking = [f"{name} ({identity})" for name, identity in made_with.items() if name not in present]
    return f"; the model was made with parts of {', '.join(lacking)}: give --import" if lacking else ""


def override(tree: dict[str, Any], assignment: str) -> None:
    """Apply one `dotted.path=value`; the value is parsed as TOML, or else taken as plain text."""
    path, equals, text = assignment.partition("=")
    if not equals or not all(part.strip() for part in path.split(".")):
        raise SettingsError(f"--set {assignment}: expected PATH=VALUE, such as training.updates=8000")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *tables, key = path.strip().split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise SettingsError(f"--set {assignment}: '{table}' is a setting, not a table")
    tree[key] = value


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _expanded(value: Any, place: str) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match, place), value)
    if isinstance(value, list):
        return [_expanded(item, place) for item in value]
    if isinstance(value, dict):
        return {key: _expanded(item, place) for key, item in value.items()}
    return value


def _variable(match: re.Match[str], place: str) -> str:
    name, default = match.group(1), match.group(2)
    value = os.environ.get(name, default)
    if value is None:
        raise SettingsError(f"{place}: ${{{name}}}: no such environment variable; give a default as ${{{name}:-value}}")
    return value


class PluginSettings(Settings):
    """[plugins]: modules with parts from outside."""

    table: ClassVar[str] = "plugins"

    modules: Names = ()
    """Files, names of modules, or entry points of installed packages; a run imports them, a model folder does not."""
    identities: dict[str, str] = Field(default_factory=dict)
    """Version and digest of each module that a training imported."""


FORMAT = 2
"""Format of the settings and model folders that this version writes, and the newest that it reads."""


class Config(Settings):
    """All settings of a run.

    `model` defines the architecture and is fixed once weights exist; `data`, `tokenizer` and `training` are provenance;
    `evaluation` and `decoding` are defaults that each call may override.
    """

    format: int = FORMAT
    """Version of the settings and of the model folder's layout. A newer one is refused."""
    data: DataSettings = DataSettings.model_construct()
    tokenizer: TokenizerSettings = TokenizerSettings.model_construct()
    model: ModelSettings = ModelSettings.model_construct()
    training: TrainingSettings = TrainingSettings.model_construct()
    evaluation: EvaluationSettings = EvaluationSettings.model_construct()
    decoding: DecodingSettings = DecodingSettings.model_construct()
    plugins: PluginSettings = PluginSettings.model_construct()

    @field_validator("format")
    @classmethod
    def _format_is_known(cls, number: int) -> int:
        if number > FORMAT:
            raise ValueError(f"found {number}, newer than {FORMAT}, the newest this Translume reads; upgrade Translume")
        if number < 1:
            raise ValueError(f"found {number}, expected a number from 1 to {FORMAT}")
        return number

    def by_path(self) -> dict[str, Any]:
        """Return all settings by their paths, such as "model.width", as JSON values."""

        def flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
            for name, value in values.items():
                yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]

        return dict(flat(self.model_dump(mode="json"), ""))

    @classmethod
    def read(cls, path: Path | str, overrides: Iterable[str] = (), *, partial: bool = False) -> Self:
        """Read a TOML file and apply `path=value` overrides. Relative paths are relative to the file's folder.

        partial: see `build`.
        Raises SettingsError naming the file and the setting, DataError if the file cannot be read.
        """
        path = Path(path)
        tables = parse_toml(read_text(path), str(path))
        plugins = tables.get("plugins")
        named = as_tuple(plugins.get("modules", ())) if isinstance(plugins, dict) else ()
        load_parts(str(path.parent / each) if each.endswith(".py") else each for each in named if isinstance(each, str))
        config = cls.build(tables, overrides, place=str(path), partial=partial)
        if identities := loaded():
            config = config.model_copy(update={"plugins": config.plugins.model_copy(update={"identities": identities})})
        return config.relative_to(path.parent)

    @classmethod
    def parse(cls, text: str, overrides: Iterable[str] = (), *, place: str = "settings", partial: bool = False) -> Self:
        """Parse TOML text; `${NAME}` and `${NAME:-default}` in strings are replaced from the environment."""
        return cls.build(parse_toml(text, place), overrides, place=place, partial=partial)

    @classmethod
    def build(
        cls,
        values: Mapping[str, Any],
        overrides: Iterable[str] = (),
        *,
        place: str = "settings",
        partial: bool = False,
    ) -> Self:
        """Build the settings from nested mappings.

        partial: for fine-tuning. What the settings leave out is the base model's, so that only `train` can check that
        task, model and training fit together.
        """
        config = build(cls, values, overrides, place)
        if not partial:
            resolve_name("translume.tasks:check_settings")(config.data, config.model, config.training, place)
        return config

    def check_decoding(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if settings of a search need what a model with these data and this network lacks."""
        documents = resolve_name("translume.tasks:find_task")(self.data.task).reads == "documents"
        kind = "a language model" if documents else "a model that reads a source"
        for name in OF_SOURCES if documents else OF_LANGUAGE_MODELS:
            value, usual = getattr(settings, name), DecodingSettings.model_fields[name].default
            if value != usual:
                raise SettingsError(f"decoding.{name}: found {value!r}, must be {usual!r} for {kind}")
        if settings.alignment and (setting := self.without_tokens):
            raise SettingsError(f"decoding.alignment: found true, must be false with {setting}")
        if settings.timestamps and not self.data.source.window:
            raise SettingsError(
                f"decoding.timestamps: found true, must be false with data.source = '{self.data.source.kind}'"
            )

    @property
    def scoring(self) -> EvaluationSettings:
        """[evaluation] for the metric of training, and for the target language unless there are several."""
        settings, language = self.evaluation.of_training(self.training.metric), self.data.target_language
        return settings.of_language(language) if language else settings

    @property
    def translates(self) -> bool:
        """Whether the model translates between languages that are named, so that a text can be split into sentences."""
        return self.data.translation or self.model.language_tags != "none"

    @property
    def without_tokens(self) -> str:
        """Why no token of a source is a position of the encoder: the setting, such as "data.source = 'audio'".

        Empty if each token is one.
        """
        if self.data.source.reader:
            return f"data.source = '{self.data.source.kind}'"
        pooling = self.model.segment_pooling
        return "" if pooling == "none" else f"model.segment_pooling = '{pooling}'"

    @property
    def longest_source(self) -> int:
        """Maximum length of a source: of a text in tokens, EOS included; else in positions of the encoder."""
        return self.data.source.longest(self.model.of_encoder.max_positions)

    def change(self, *overrides: str) -> Self:
        """Return a copy with `path=value` overrides applied."""
        return self.build(self.stated(), overrides, place="--set")

    def with_values(self, table: str, values: Mapping[str, Any]) -> Self:
        """Return a copy with other values in a table such as "training", which are not checked."""
        return self.model_copy(update={table: getattr(self, table).model_copy(update=values)})

    def relative_to(self, folder: Path) -> Self:
        """Return a copy with paths joined to `folder`, but not addresses.

        Paths in [decoding] and [evaluation] become absolute.
        """

        escaped = Path(escape(str(folder)))

        def joined(path: str) -> str:
            if not path or "://" in path:
                return path
            return str((escaped if has_magic(path) else folder) / path)

        def read_anywhere(path: str) -> str:
            return path if "://" in path else str((folder / path).absolute())

        def absolute(group: Tree, *names: str) -> Tree:
            # Values that do not change stay as they are, so that they do not count as stated.
            paths = {name: getattr(group, name) for name in names}
            named = {name: read_anywhere(path) for name, path in paths.items() if path and read_anywhere(path) != path}
            return group.model_copy(update=named)

        decoding = absolute(self.decoding, "terminology", "vocabulary", "utility_model", "draft")
        ban = tuple(f"@{read_anywhere(each[1:])}" if names_file(each) else each for each in decoding.ban)
        learned = {
            "comet": absolute(self.evaluation.comet, "model", "kiwi_model", "python"),
            "bertscore": absolute(self.evaluation.bertscore, "model"),
            "metricx": absolute(self.evaluation.metricx, "model", "tokenizer"),
        }
        decoding = decoding.model_copy(update={"ban": ban} if ban else {})
        evaluation = self.evaluation.model_copy(update=learned)
        return self._with_paths(joined).model_copy(update={"decoding": decoding, "evaluation": evaluation})

    def without_folders(self) -> Self:
        """Return a copy with file names instead of paths, except in [decoding]."""
        return self._with_paths(lambda path: Path(path).name)

    def _with_paths(self, changed: Callable[[str], str]) -> Self:
        """Return a copy with changed paths, except in [decoding]."""

        def with_changed(group: Tree, *names: str) -> Tree:
            paths = {name: value for name in names if (value := getattr(group, name))}
            return group.model_copy(
                update={
                    name: changed(value) if isinstance(value, str) else tuple(map(changed, value))
                    for name, value in paths.items()
                }
            )

        data = with_changed(self.data, *PATHS)
        if data.corpus:
            data = data.model_copy(update={"corpus": tuple(with_changed(each, *PATHS) for each in data.corpus)})
        return self.model_copy(
            update={
                "data": data,
                "tokenizer": with_changed(self.tokenizer, "path", "target_path"),
                "model": with_changed(self.model, "pretrained_source", "pretrained_target"),
                "training": with_changed(self.training, "teacher"),
            }
        )

    def to_toml(self, *, comments: bool = False, stated: bool = False) -> str:
        """Return TOML that `parse` reads back to equal settings.  stated: without those that were given no value."""
        return to_toml(self, comments=comments, stated=stated)
