"""Names that a package exports, whose modules are imported when the names are first used."""

import re
import sys
from collections.abc import Callable
from importlib import import_module


def export_late(package: str) -> Callable[[str], object]:
    """Import each name that the source of a package imports for type checkers only when the name is first used.

    Returns the package's `__getattr__`, which raises AttributeError for other names. A module of the package must not
    have the name of another one's function, since importing the module would replace it.
    """
    module = sys.modules[package]
    source: str = module.__loader__.get_source(package)  # type: ignore[union-attr]  # every loader of source has it
    places = {name: place for place, name in re.findall(r"^    from (\S+) import (\w+) as \2$", source, re.MULTILINE)}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value: object = getattr(import_module(places[name]), name)
        setattr(module, name, value)
        return value

    vars(module).update(__getattr__=get, __dir__=lambda: sorted({*vars(module), *places}), __all__=sorted(places))
    return get
