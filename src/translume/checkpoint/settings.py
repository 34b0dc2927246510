"""The settings of a model folder: reading them, also those of older formats, and the files that [decoding] names.

A folder contains copies of the files that [decoding] names, so that it can be moved. `config.toml` refers to them by
their names in the manifest, such as "decoding/terminology.tsv"; the settings of a loaded model have the copies' paths.
Settings of an older format are migrated while they are read, by one function per format; the folder is not changed.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from translume.checkpoint.folder import FORMAT, FolderLock, Manifest, commit, newer_format, read_committed, verified
from translume.config import Config
from translume.config.decoding import names_file
from translume.config.evaluation import CometSettings
from translume.data.lines import COMPRESSED
from translume.errors import ModelFolderError, SettingsError, refused

CONFIG = "config.toml"
DECODING_FILES = "decoding/"
"""Prefix of the names of copies of the files that [decoding] names."""

Tables = dict[str, Any]

STEPS: Mapping[int, Callable[[Tables], Tables]] = {1: dict}
"""From a format to the function from its settings, as nested tables, to those of the next one; the first one is 1.

Formats differ in more than settings: in format 1 the files of the tokenizers had the names that the library's files
have since (`own_file`).
"""
REMOVED: Mapping[str, frozenset[str]] = {"decoding": frozenset({"speculation", "draft_length"})}
"""Settings of format 1, by table, that no longer exist. Saved settings list every default, so reading ignores them."""


def migrate(
    tables: Tables,
    place: str,
    steps: Mapping[int, Callable[[Tables], Tables]] = STEPS,
    newest: int = FORMAT,
) -> Tables:
    """Return the settings in the newest format. Raises ModelFolderError for an unknown format."""
    number = tables.get("format", newest)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ModelFolderError(f"{place}: format: found {number!r}, expected a number from 1 to {newest}")
    if number > newest:
        raise ModelFolderError(newer_format(place, number))
    for step in range(number, newest):
        tables = {**steps[step](tables), "format": step + 1}
    for table, removed in REMOVED.items():
        if isinstance(values := tables.get(table), dict):
            tables = {**tables, table: {name: value for name, value in values.items() if name not in removed}}
    return tables


def read_config(folder: Path, manifest: Manifest | None = None) -> Config:
    """Return the settings of a model folder in the newest format, with paths to its copies of [decoding]'s files.

    They name no model of a learned metric: comet unpickles its models, and the folder may be a stranger's.
    """
    manifest = manifest or Manifest.read(folder)
    config = use_decoding_copies(stored_config(folder, manifest), folder, manifest)
    decoding = config.decoding.model_copy(update={"utility_model": ""} if config.decoding.utility_model else {})
    evaluation = config.evaluation.model_copy(update={"comet": CometSettings()})
    return config.model_copy(update={"decoding": decoding, "evaluation": evaluation})


def stored_config(folder: Path, manifest: Manifest) -> Config:
    """Return the settings in the newest format; [decoding] names files as the manifest does."""
    content = read_committed(folder, manifest, CONFIG)
    place = str(folder / manifest.files[CONFIG].file)
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"{place}: not TOML: {error}") from None
    try:
        return Config.build(migrate(tables, place), place=place)
    except SettingsError as error:
        raise ModelFolderError(str(error)) from None


def store_decoding(folder: Path, changes: Mapping[str, Any]) -> None:
    """Commit changes of [decoding] to a model folder.

    Raises ModelFolderError if it cannot be written, TrainingError if a process trains in it.
    """
    Manifest.read(folder)  # before the lock would make a folder
    with FolderLock(folder):
        config = stored_config(folder, Manifest.read(folder))
        changed = config.with_values("decoding", changes)
        commit(folder, {CONFIG: changed.to_toml().encode()})


def copy_decoding_files(config: Config) -> tuple[Config, dict[str, bytes]]:
    """Return the settings with the names that [decoding]'s files get in a model folder, and their content by name.

    Raises DataError, naming the setting, if a file cannot be read.
    """
    files: dict[str, bytes] = {}

    def taken(path: str, setting: str, stem: str) -> str:
        packed = PurePosixPath(path).suffix
        name = DECODING_FILES + (PurePosixPath(stem).stem + packed if packed in COMPRESSED else stem)
        with refused(f"decoding.{setting}: {path}", "cannot be read"):
            files[name] = Path(path).read_bytes()
        return name

    return _renamed(config, taken), files


def use_decoding_copies(config: Config, folder: Path, manifest: Manifest) -> Config:
    """Return the settings with the paths of the folder's copies; other paths stay as they are.

    Raises ModelFolderError if a copy is missing or damaged.
    """

    def copied(path: str, setting: str, stem: str) -> str:
        return str(verified(folder, manifest, path).absolute()) if path in manifest.files else path

    return _renamed(config, copied)


def stale_decoding_files(manifest: Manifest, files: Collection[str]) -> set[str]:
    """Return the names of copies that the settings no longer name."""
    return {name for name in manifest.files if name.startswith(DECODING_FILES)} - set(files)


def _renamed(config: Config, renamed: Callable[[str, str, str], str]) -> Config:
    """Return the settings with new paths of [decoding]'s files: `renamed` maps (path, setting, file name) to a path."""
    decoding = config.decoding
    changes: dict[str, str | tuple[str, ...]] = {}
    for setting, stem in (("terminology", "terminology.tsv"), ("vocabulary", "vocabulary.txt")):
        path = getattr(decoding, setting)
        if path:
            changes[setting] = renamed(path, setting, stem)
    if any(map(names_file, decoding.ban)):
        changes["ban"] = tuple(
            f"@{renamed(entry[1:], 'ban', f'ban-{number}.txt')}" if names_file(entry) else entry
            for number, entry in enumerate(decoding.ban, start=1)
        )
    return config.with_values("decoding", changes) if changes else config
