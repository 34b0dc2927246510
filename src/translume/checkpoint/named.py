"""The files that [decoding] names: a model folder holds copies, so that it means the same wherever it is moved.

In `config.toml` such a file goes by its name in the manifest, "decoding/terminology.tsv"; a loaded model's settings
name the copy itself.
"""

from collections.abc import Callable, Collection
from pathlib import Path, PurePosixPath

from translume.checkpoint.folder import committed
from translume.checkpoint.manifest import Manifest
from translume.config import Config
from translume.config.decoding import names_file
from translume.errors import DataError

FOLDER = "decoding/"
_PACKED = (".gz", ".zst")


def taken_in(config: Config) -> tuple[Config, dict[str, bytes]]:
    """The settings with the names that the files get in a model folder, and what these hold, by name.

    Raises DataError, naming the setting, where one cannot be read.
    """
    files: dict[str, bytes] = {}

    def taken(path: str, setting: str, stem: str) -> str:
        packed = PurePosixPath(path).suffix
        name = FOLDER + (PurePosixPath(stem).stem + packed if packed in _PACKED else stem)
        try:
            files[name] = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"decoding.{setting}: {path}: cannot be read: {error.strerror or error}") from None
        return name

    return _renamed(config, taken), files


def found_in(config: Config, folder: Path, manifest: Manifest) -> Config:
    """The settings with the paths of the copies that the folder holds; other paths are left as they are.

    Raises ModelFolderError where a copy is missing or damaged.
    """

    def found(path: str, setting: str, stem: str) -> str:
        return str(committed(folder, manifest, path).absolute()) if path in manifest.files else path

    return _renamed(config, found)


def left_over(manifest: Manifest, files: Collection[str]) -> set[str]:
    """Names of copies that settings spoke of before, and do not now."""
    return {name for name in manifest.files if name.startswith(FOLDER)} - set(files)


def _renamed(config: Config, renamed: Callable[[str, str, str], str]) -> Config:
    """The settings with another path for each file; `renamed` is told its path, its setting and a name for it."""
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
    return config.model_copy(update={"decoding": decoding.model_copy(update=changes)}) if changes else config
