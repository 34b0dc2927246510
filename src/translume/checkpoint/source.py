"""Where a model is: a folder, or a repository of the Hugging Face Hub."""

import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from translume.errors import SettingsError

_HUB = re.compile(r"hf:/{1,2}(?!/)")
"""The start of the name of a repository. A Path of "hf://owner/name" has one slash."""


def is_hub(source: Path | str) -> bool:
    """Return whether `source` names a repository, as hf://owner/name or hf://owner/name@revision."""
    return _HUB.match(str(source)) is not None


def model_folder(source: Path | str, *, progress: bool = True) -> Path:
    """Return the folder of a model: `source`, or for a repository its import in the user's cache.

    A repository is downloaded and imported if it has changed since the last time.
    progress: whether a terminal shows how far a download is. Raises SettingsError if the libraries
    for it are not installed, and the errors of `import_model`.
    """
    if not is_hub(source):
        return Path(source)
    folder: Path = hub_function("cached_model")(repository_name(source), progress=progress)
    return folder


def repository_name(source: Path | str) -> str:
    """Return the name of a repository with both slashes, which a Path loses."""
    return f"hf://{_HUB.sub('', str(source), count=1)}"


def hub_function(name: str) -> Any:
    """Return a function of the module for the Hub. Raises SettingsError if a library that it needs is missing."""
    try:
        return resolve_name(f"translume.interchange.hub:{name}")
    except ModuleNotFoundError as error:
        raise SettingsError(f"hf://: {error.name} is not installed; pip install 'translume[export]'") from None
