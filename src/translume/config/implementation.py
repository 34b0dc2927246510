"""The class behind a name in the settings, imported when it is built."""

from importlib import import_module
from typing import Any


def implementation(name: str) -> Any:
    """The class that settings name as "package.module:Class"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
