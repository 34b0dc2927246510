"""Parts that settings and commands name, and the modules of users that add some.

Each kind of part has one table from names to parts, or to their places, "module:Name", which are imported when they are
used. `part` adds one to it:

    @part("schedule", "linear", interface=1)
    def linear(update: int, settings: TrainingSettings, width: int) -> float: ...

docs/adding.md says what each kind of part is.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from functools import cache
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Final, TypeVar

from translume.errors import SettingsError, check_known, nearest

INTERFACE: Final = 1
"""The version of the interfaces of parts. A part that was written for another one is refused."""
GROUP: Final = "translume.parts"
"""The group of entry points in which installed packages name their modules of parts."""
VARIABLE: Final = "TRANSLUME_IMPORT"
"""The environment variable by which a process and its children know the modules of --import."""
HINT: Final = "; `translume docs adding` shows how to write one"

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "source": ("translume.config.sources:SOURCES", "data"),
    "position": ("translume.config.model:POSITIONS", "model"),
    "norm": ("translume.config.model:NORMS", "model"),
    "attention": ("translume.config.model:ATTENTIONS", "model"),
    "feed_forward": ("translume.config.model:FEED_FORWARDS", "model"),
    "head": ("translume.config.heads:HEADS", "model"),
    "task": ("translume.tasks.task:TASKS", "data"),
    "objective": ("translume.config.training:OBJECTIVES", "training"),
    "optimizer": ("translume.config.training:OPTIMIZERS", "training"),
    "schedule": ("translume.config.training:SCHEDULES", "training"),
    "strategy": ("translume.config.decoding:STRATEGIES", "decoding"),
    "rule": ("translume.config.decoding:RULES", "decoding"),
    "metric": ("translume.config.evaluation:METRICS", "evaluation"),
    "document": ("translume.documents:FORMATS", ""),
    "export": ("translume.interchange.export:TARGETS", ""),
    "command": ("translume.cli.group:COMMANDS", ""),
}
"""The table of each kind of part, and the table of the settings that name such parts."""

Part = TypeVar("Part")
_OF_A_MODULE = (
    ArithmeticError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError, SyntaxError, TypeError,
    ValueError,
)  # fmt: skip
"""What a module may raise while it is imported."""
_modules: dict[str, ModuleType] = {}
"""The modules of parts that were imported, by the words that named them."""
_options: dict[str, type[Any]] = {}
"""The classes of the settings of parts from outside, by their table, such as "model.options.linear"."""


def table_of(kind: str) -> MutableMapping[str, Any]:
    """Return the parts of a kind by name; SettingsError for an unknown kind."""
    check_known("part", kind, KINDS)
    table: MutableMapping[str, Any] = resolve_name(KINDS[kind][0])
    return table


def names(kind: str) -> list[str]:
    """Return the names of the parts of a kind."""
    return list(table_of(kind))


def find(kind: str, name: str) -> Any:
    """Return a part by its name, imported if it was not; SettingsError for an unknown one."""
    table = table_of(kind)
    check_known(kind, name, table)
    entry = table[name]
    return resolve_name(entry) if isinstance(entry, str) else entry


def part(kind: str, name: str, *, interface: int, settings: type[Any] | None = None) -> Callable[[Part], Part]:
    """Return a decorator that adds a part to those of a kind.

    interface: the number of the interface that the part was written for, `INTERFACE` at that time.
    settings: the class of its own settings, which users write in the table `options.NAME` beside the name of the part.
    Raises SettingsError for an unknown kind, another interface, or a name that another part has.
    """

    def add(new: Part) -> Part:
        place = f"{getattr(new, '__module__', '?')}: {kind} '{name}'"
        if interface != INTERFACE:
            raise SettingsError(f"{place}: written for interface {interface}, this Translume has {INTERFACE}")
        table = table_of(kind)
        if not _same_place(table.get(name, new), new):
            raise SettingsError(f"{place}: another part has this name")
        table[name] = new
        if settings is not None:
            settings.table = f"{KINDS[kind][1]}.options.{name}"
            _options[settings.table] = settings
        return new

    return add


def _same_place(old: Any, new: Any) -> bool:
    """Return whether both are the same definition, which may have been imported again."""
    return old is new or all(
        getattr(old, each, "") == getattr(new, each, None) for each in ("__module__", "__qualname__")
    )


def option_class(table: str) -> type[Any]:
    """Return the class of the settings of a part by its table, such as "model.options.linear"."""
    if table not in _options:
        above = table.rpartition(".")[0]
        known = [each for each in _options if each.startswith(f"{above}.")]
        raise SettingsError(f"{table}: no such part has settings{nearest(table, known) if known else ''}")
    return _options[table]


def load_parts(words: Iterable[str]) -> None:
    """Import modules of parts: files, names of modules, or names of entry points of installed packages.

    The processes that this one starts import them when they need them.
    Raises SettingsError for one that is not found or cannot be imported.
    """
    for word in words:
        place = str(Path(word).resolve()) if word.endswith(".py") else word
        if place not in _modules:
            _modules[place] = _imported(place)
            os.environ[VARIABLE] = os.pathsep.join(_modules)


def load_parts_of_parent() -> None:
    """Import the modules that the process that started this one had imported."""
    load_parts(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def loaded() -> dict[str, str]:
    """Return what identifies the modules of parts that were imported: version and digest of each, by name."""
    return {module.__name__: _identity(module, place.endswith(".py")) for place, module in _modules.items()}


def _imported(word: str) -> ModuleType:
    import traceback  # here, as below, since most commands import no modules of parts
    from importlib.metadata import entry_points

    named = entry_points(group=GROUP)
    try:
        if word.endswith(".py"):
            return _from_file(Path(word))
        if word in named.names:
            module: ModuleType = import_module(named[word].module)
            return module
        return import_module(word)
    except ModuleNotFoundError as error:
        if error.name != word:
            raise SettingsError(f"{word}: cannot be imported: {error}") from None
        known = (f"; installed: {', '.join(sorted(named.names))}" if named.names else "") + HINT
        raise SettingsError(f"{word}: no such module, expected a file, a module or an entry point{known}") from None
    except _OF_A_MODULE as error:
        *_, last = traceback.extract_tb(error.__traceback__)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SettingsError(f"{word}: cannot be imported: {reason} ({last.filename}, line {last.lineno})") from error


def _from_file(path: Path) -> ModuleType:
    """Import a file as the module of its name, which pickles and places such as "my_parts:Head" name.

    Its folder becomes the last one in which Python looks for modules, also in processes that this one starts.
    """
    if not path.is_file():
        raise SettingsError(f"{path}: no such file of parts{HINT}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    invalidate_caches()
    spec = find_spec(path.stem)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != path:
        raise SettingsError(f"{path}: there is another module {path.stem}, {spec and spec.origin}; rename the file")
    return import_module(path.stem)


@cache  # every Config needs it, and reading the packages of an environment takes half a second
def _identity(module: ModuleType, is_file: bool) -> str:
    """Return the version of a module, or of the package that installed it, and the digest of its source."""
    import hashlib
    from importlib.metadata import packages_distributions, version

    distribution = [] if is_file else packages_distributions().get(module.__name__.partition(".")[0], [])
    known = getattr(module, "__version__", "") or (version(distribution[0]) if distribution else "")
    digest = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]
    return f"{known} sha256:{digest}".strip()
