"""Write the generated pages and JSON schemas of docs/. `make docs` runs it; a test checks that they are up to date."""

import ast
import inspect
import math
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from translume.config import Config, Settings
from translume.config.base import OfKind, OneOf, Options, documentation, literal
from translume.config.clean import CleanFile
from translume.inspection.values import SCHEMAS, schema_text
from translume.serving.settings import ServeSettings

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- Generated from the code by `make docs`; manual changes will be overwritten. -->"
WIDTH = 100

SETTINGS = f"""# Settings
{MADE}

All settings of a run, with type, default, allowed values and meaning. They are used in the TOML file of a run, in
`--set path=value` on the command line, and in the `config.toml` of a model folder. An unknown name is an error that
suggests the nearest known one. In a trained model, `[model]` describes the weights and cannot be changed; `[data]`,
`[tokenizer]` and `[training]` record how it was made; `[evaluation]` and `[decoding]` are defaults that every call can
override.

Paths are relative to the TOML file. `${{NAME}}` and `${{NAME:-default}}` in strings are replaced by environment
variables. `translume init` writes a commented file to start from; `translume config FILE` prints every setting that a
run would use."""

SERVING = """
# Settings of a server

The settings in the file `serve.toml` that `translume serve --config FILE` reads. Command-line options and `--set`
override them. Paths are relative to the file, and `${NAME}` is replaced as above. At SIGHUP the server reads the file
again. Changes of `host`, `port`, `metrics` and the limits of queues and stored files take effect only after a restart;
the log names them ([deploying](deploy.md))."""

CLEANING = """
# Settings of the cleaning of parallel data

The table `[clean]` in the file that `translume data clean --config FILE` reads ([cleaning](cleaning.md)). The options
of the command and `--set` override it."""

COMMANDS = f"""# Commands
{MADE}

The output of `--help` for every command. Commands take the model first, then the data. Text is read from standard input
and written to standard output, one line out per line in; notes and progress go to standard error. `--json` prints one
JSON object per line. The exit code is 1 for invalid input, with a one-line message, and 2 for wrong usage of the
command line. If standard output is closed or cannot be written, the exit code is 1, or 141 if its reader is gone. Notes
that standard error does not accept are lost, and the command goes on. A training ends for no log: if `--json` events,
`history.jsonl` or TensorBoard's files cannot be written, it warns once and goes on. Every command takes `--quiet`,
which prints warnings and errors only. `translume completion bash` (or `zsh`, `fish`) prints a script that completes
commands, options and paths in a shell."""

API = f"""# Python
{MADE}

The public names of `import translume`, with their signatures and docstrings. They are imported, and torch with them,
when they are first used. All errors that Translume raises deliberately are `TranslumeError`s with a one-line message.
A wrong type or an unknown keyword is a `TypeError`; for a keyword it names the nearest one.

Models do not change while they are used, so threads can share one. A model that was loaded from a folder is pickled
as the folder's path and its options, and unpickling loads it again, so
`ProcessPoolExecutor().map(translator.translate, texts)` works. Errors can be pickled. Translume itself never loads a
pickle.

`load` returns the model of a folder, of any kind. `Translator.load`, `Classifier.load` and `Generator.load` return
one kind, which a type checker knows.

```python
import translume

translator = translume.load("models/en-de")
print(translator)  # languages, parameters, engine, folder
print(translator.translate("A man is riding a bicycle.", beam=5, max_length=40))
```"""

TABLE = "<!-- table made by `make docs` -->"

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def settings_page() -> str:
    """Return the page of settings, with one table per group, depth first."""
    top = [row(Config, "format")]
    parts = [SETTINGS, *table("At the top of the file", "", top), *groups_in(Config, "")]
    top = [
        row(ServeSettings, name)
        for name, field in ServeSettings.model_fields.items()
        if not settings_in(field.annotation)
    ]
    text = description(ServeSettings)
    return (
        "\n".join(
            [
                *parts,
                *(CLEANING, *groups_in(CleanFile, "")),
                *(SERVING, *table("At the top of serve.toml", text, top), *groups_in(ServeSettings, "")),
            ]
        )
        + "\n"
    )


def groups_in(settings: type[Settings], path: str) -> Iterator[str]:
    """Yield the lines of the groups inside a group, depth first."""
    for name, field in settings.model_fields.items():
        kinds, inner = settings_in(field.annotation), f"{path}.{name}" if path else name
        if len(kinds) > 1:
            yield from kinds_page(kinds, inner)
        for kind in kinds if len(kinds) == 1 else ():
            title = f"[[{inner}]]" if get_origin(field.annotation) is tuple else f"[{inner}]"
            yield from table(title, description(kind), rows_of(kind))
            yield from groups_in(kind, inner)


def kinds_page(kinds: list[type[Settings]], path: str) -> Iterator[str]:
    """Yield the table of the settings that several kinds of a group have, then those of each kind."""
    rows = {kind: [each for each in rows_of(kind) if not each.startswith("| `kind`")] for kind in kinds}
    names = {kind: f"`{literal(kind.model_fields['kind'].default)}`" for kind in kinds}
    owners: dict[str, list[str]] = {}
    for kind in kinds:
        for each in rows[kind]:
            owners.setdefault(each, []).append(names[kind])
    shared = {each: "all" if len(of) == len(kinds) else ", ".join(of) for each, of in owners.items() if len(of) > 1}
    first = f"| `kind` | {', '.join(names.values())} | {names[kinds[0]]} |  | The kind; each has the settings below. |"
    marked = [f"{each[:-2]} Of {of}. |" for each, of in shared.items()]
    yield from table(f"[{path}]", "", [first, *marked])
    for kind in kinds:
        own = [each for each in rows[kind] if each not in shared]
        yield from table(f"[{path}] kind = {names[kind].strip('`')}", description(kind), own)


def rows_of(settings: type[Settings]) -> list[str]:
    return [row(settings, name) for name, field in settings.model_fields.items() if not settings_in(field.annotation)]


def description(settings: type[Settings]) -> str:
    text = " ".join((settings.__doc__ or "").split())
    text = text.partition(": ")[2] or text
    return escaped(text[:1].upper() + text[1:])


def table(title: str, text: str, rows: list[str]) -> Iterator[str]:
    yield f"\n## {title}"
    if text:
        yield f"\n{text}"
    if rows:
        yield "\n| setting | type | default | range | meaning |\n|---|---|---|---|---|"
        yield from rows


def row(settings: type[Settings], name: str) -> str:
    field = settings.model_fields[name]
    text = escaped(" ".join(documentation(settings).get(name, "").split()))
    value = field.get_default(call_default_factory=True)
    default = "" if field.is_required() else f"`{escaped(literal(value))}`"
    kind = escaped(choices(field) or type_name(field.annotation))
    return f"| `{name}` | {kind} | {default} | {bounds(field)} | {text} |"


def choices(field: FieldInfo) -> str:
    """Return the names that `OneOf` allows; empty for a field without it."""
    validators = (getattr(each, "func", None) for each in field.metadata)
    allowed = (name for each in validators if isinstance(each, OneOf) for name in each.allowed())
    return ", ".join(f"`{literal(name)}`" for name in allowed)


def settings_in(annotation: Any) -> list[type[Settings]]:
    """Return the groups of settings that a field may hold: one class, or those of all kinds."""
    if get_origin(annotation) is Annotated:
        return settings_in(get_args(annotation)[0])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return [found for member in get_args(annotation) for found in settings_in(member)]
    if get_origin(annotation) is tuple:
        return settings_in(get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, OfKind):
        return [*annotation.kinds().values()]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Settings) else []


def type_name(annotation: Any) -> str:
    """Describe a type in the words of TOML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{literal(value)}`" for value in arguments)
    if annotation is Options:
        return "tables"
    if origin is dict:
        return f"table: {type_name(arguments[1])}"
    if origin is tuple:
        return "list: " + type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(member) for member in arguments if member is not type(None))
    return {int: "integer", float: "number", str: "string", bool: "true or false"}.get(annotation, str(annotation))


def bounds(field: FieldInfo) -> str:
    limits = (
        f"{sign} {getattr(limit, name)}"
        for limit in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(limit, name)
    )
    return ", ".join(limits)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<unk>", "`<unk>`")


def commands_page() -> str:
    """Return the page of commands: the help text of each, subcommands after their group."""
    from translume.cli import main

    return "\n".join([COMMANDS, *command_help(main, "translume")]) + "\n"


def command_help(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[str]:
    name = path.split()[-1]
    settings = command.context_settings
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH, **settings)
    yield f"\n## {path}\n\n```text\n{command.get_help(context).rstrip()}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                yield from command_help(inner, f"{path} {name}", context)


def api_page() -> str:
    """Return the page of the public Python names: classes first, then functions."""
    import translume

    found = {name: getattr(translume, name) for name in translume.__all__ if name != "__version__"}
    classes = {name: value for name, value in found.items() if inspect.isclass(value)}
    errors = {name: value for name, value in classes.items() if issubclass(value, Exception)}
    parts = [API, "\n# Functions"]
    for name in sorted(found.keys() - classes.keys()):
        parts += described(name, found[name], "##")
    parts.append("\n# Classes")
    for name in sorted(classes.keys() - errors.keys()):
        parts += class_described(name, classes[name])
    parts.append("\n# Classes of fields\n\nThe types of the fields above. They are not names of `translume`.")
    for kind in sorted(classes_of_fields(classes.values()), key=lambda kind: kind.__name__):
        parts += class_described(kind.__name__, kind)
    parts.append("\n# Errors\n")
    parts += [f"- `{name}`: {paragraphs(value)}" for name, value in sorted(errors.items())]
    return "\n".join(parts) + "\n"


def classes_of_fields(kinds: Iterable[type[Any]]) -> set[type[Any]]:
    """Return the dataclasses of Translume in the fields of `kinds`, and in their fields, except `kinds` themselves."""
    public, found = set(kinds), set[type[Any]]()
    waiting = [kind for kind in public if is_dataclass(kind)]
    while waiting:
        for annotation in typing.get_type_hints(waiting.pop()).values():
            new = dataclasses_in(annotation) - public - found
            found |= new
            waiting += new
    return found


def dataclasses_in(annotation: Any) -> set[type[Any]]:
    if isinstance(annotation, type) and is_dataclass(annotation):
        return {annotation} if annotation.__module__.startswith("translume.") else set()
    return {kind for member in get_args(annotation) for kind in dataclasses_in(member)}


def class_described(name: str, kind: type[Any]) -> Iterator[str]:
    """Yield the lines of a class: its docstring, fields, properties and methods."""
    yield f"\n## {name}\n\n{paragraphs(kind)}"
    if issubclass(kind, Settings):
        if kind is not Config:
            yield f"\nIts fields are the settings of [`[{kind.table}]`](settings.md#{kind.table})."
    elif is_dataclass(kind):
        source = textwrap.dedent(inspect.getsource(kind))
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        # As the source has it, since `ruff format` would change the quotes that unparsing writes.
        typed = [ast.get_source_segment(source, node) or "" for node in body.body if isinstance(node, ast.AnnAssign)]
        yield "\n```py\n" + "\n".join(typed) + "\n```"
    for member, value in vars(kind).items():
        if member.startswith("_") or member == "model_config":
            continue
        if isinstance(value, property):
            yield f"\n### {name}.{member}\n\n{paragraphs(value)}"
        elif inspect.isfunction(value) or isinstance(value, classmethod):
            yield from described(f"{name}.{member}", getattr(kind, member), "###")


def described(name: str, function: Any, level: str) -> Iterator[str]:
    """Yield the lines of a function: its signature as the source has it, and its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    positional = tree.args.posonlyargs or tree.args.args
    if positional and positional[0].arg in ("self", "cls"):
        positional.pop(0)
    result = ast.unparse(tree.returns).strip("'") if tree.returns else "None"
    line = f"{name}({ast.unparse(tree.args)}) -> {result}"
    if len(line) > WIDTH:
        line = f"{name}(\n    {split_at_commas(ast.unparse(tree.args))},\n) -> {result}"
    yield f"\n{level} {name}\n\n```py\n{line}\n```\n\n{paragraphs(function)}"


def split_at_commas(text: str) -> str:
    """Return a list of parameters with each on a line of its own."""
    depth, found = 0, ""
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        comma = depth == 0 and text[place - 1] == ","
        found += "\n    " if comma and character == " " else character
    return found


def paragraphs(value: Any) -> str:
    """Return the docstring as Markdown; a "name: meaning" line begins a paragraph of its own."""
    text = re.sub(r"<(?=\w)", "&lt;", inspect.getdoc(value) or "")
    return re.sub(r"\n+(?=\w+(, \w+)*: )", "\n\n", text)


def init_page() -> str:
    """Return the page on `init` with an updated table of sizes."""
    from translume.experiments.table import table

    names = table()["columns"]
    lines = [
        f"| {' | '.join(name.replace('_', ' ') for name in names)} |",
        f"|---{'|---:' * (len(names) - 3)}|---|---|",
    ]
    for row in table()["rows"]:
        lines.append(f"| {' | '.join(map(_cell, row.values()))} |")
    before, _, after = (DOCS / "init.md").read_text(encoding="utf-8").split(TABLE)
    return TABLE.join((before, "\n".join(["", *lines, ""]), after))


def _cell(value: Any) -> str:
    """Return a value of the table of `init`: a number, a name, more settings, or recipes."""
    if isinstance(value, dict):
        return ", ".join(f"`{name} = {literal(each)}`" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(f"[{name}](../recipes/{name}.toml)" for name in value)
    return "any" if value == math.inf else value if isinstance(value, str) else f"{value:,}"


PAGES = {
    "settings.md": settings_page,
    "cli.md": commands_page,
    "api.md": api_page,
    "init.md": init_page,
    **{name: partial(schema_text, name) for name in SCHEMAS},
}


def write_all() -> None:
    """Write every generated page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    write_all()
