"""Import what a string names, when it is used."""

from importlib import import_module
from typing import Any


def implementation(name: str) -> Any:
    """Import and return what "package.module:name" names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
