"""translume new"""

import re
from pathlib import Path

import click

from translume.atomic import write_file
from translume.cli.group import CommandGroup
from translume.cli.terminal import note
from translume.errors import SettingsError, check_known
from translume.parts import KINDS

SKELETONS = Path(__file__).parents[1] / "skeletons"
TEST = '''"""Properties that every {kind} must have."""

import {name}
from translume.contracts import check_part


def test_it_is_a_{kind}() -> None:
    check_part({arguments})


# Add tests of what {name} computes: values by hand, and its limits.
'''


@click.group("new", cls=CommandGroup, short_help="Write the beginning of a part of your own.")
def new() -> None:
    """Write the beginning of a part of your own."""


@new.command(
    "part",
    short_help="Write a module with a part, and its tests.",
    epilog="Example: translume new part head my_head",
)
@click.argument("kind")
@click.argument("name")
def part(kind: str, name: str) -> None:
    """Write NAME.py, a working example of a part of KIND, and test_NAME.py, the tests that all such parts must pass.

    KIND is head, position, norm, metric, rule or another; a wrong one is answered with all of them.

    Then: pytest test_NAME.py, and translume COMMAND ... --import NAME.py
    """
    check_known("new part", kind, KINDS)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise SettingsError(f"new part: found the name '{name}', expected lower-case letters, digits and _")
    files = Path(f"{name}.py"), Path(f"test_{name}.py")
    for file in files:
        if file.exists():
            raise SettingsError(f"{file}: exists; choose another name")
    text = (SKELETONS / f"{kind}.py").read_text(encoding="utf-8")
    text = text.replace("my_part", name).replace("MyPart", "".join(each.capitalize() for each in name.split("_")))
    arguments = f'"{kind}", "{"." if kind == "document" else ""}{name}"'
    arguments += f", sample={name}.SAMPLE" if "SAMPLE" in text else ""
    arguments += f", settings={name}.SAMPLE_SETTINGS" if "SAMPLE_SETTINGS" in text else ""
    write_file(files[0], text.encode())
    write_file(files[1], TEST.format(kind=kind, name=name, arguments=arguments).encode())
    note(f"{files[0]}, {files[1]}: written; try `pytest {files[1]}`, then --import {files[0]}")
