"""docs/licences.md lists what the wheel contains, and the packages of the image with the licences that they state."""

import re
import tomllib
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    lines = re.findall(r"^\| (.+) \|$", PAGE.partition(f"## {heading}")[2].partition("\n## ")[0], re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def plain(name: str) -> str:
    """Return the name of a package as PyPI normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_of_the_image() -> set[str]:
    """Return the packages of the base and of the extras in the Dockerfile, with those that they need, as installed."""
    requirements = pytest.importorskip("packaging.requirements", reason="packaging is not installed")
    extras = re.search(r"^ARG EXTRAS=(.+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    optional = (each for name in extras[1].split(",") for each in PROJECT["optional-dependencies"][name])
    found, waiting = set[str](), [*PROJECT["dependencies"], *optional]
    while waiting:
        requirement = requirements.Requirement(waiting.pop())
        wanted = [{"extra": each} for each in ("", *requirement.extras)]
        if plain(requirement.name) in found:
            continue
        try:
            needs = [requirements.Requirement(each) for each in requires(requirement.name) or ()]
        except PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed: pip install translume[{extras[1]}]")
        found.add(plain(requirement.name))
        waiting += [str(each) for each in needs if not each.marker or any(map(each.marker.evaluate, wanted))]
    return found


def licence_of(name: str) -> str:
    """Return the licence that a package states: as an expression, in a field or by a classifier."""
    fields = metadata(name)
    stated = fields.get("License-Expression") or (fields.get("License") or "").partition("\n")[0]
    classified = [each for each in fields.get_all("Classifier") or () if each.startswith("License :: OSI Approved :: ")]
    return str(stated or classified[0].rpartition(" :: ")[2])


def test_each_file_of_the_wheel_is_in_one_row_and_each_row_has_a_file() -> None:
    builders = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = builders.WheelBuilder(str(ROOT))
    files = {each.distribution_path for each in builder.recurse_included_files()}
    files = {name for name in files if "__pycache__" not in name and "/libraries/" not in name}
    # What the build hook compiles and copies, and what every wheel has.
    made = {"kernels-avx2.so", "kernels.wasm"}
    files |= {*(f"translume/kernels/libraries/{name}" for name in made), "translume-0.dist-info/METADATA"}
    files |= {f"translume/docs/{page.name}" for page in ROOT.glob("docs/*.md")}
    groups = [re.findall(r"`([^`]+)`", cells[0]) for cells in rows("What the wheel contains")]
    listed = [each for group in groups for each in group]
    patterns = sorted(listed, key=lambda pattern: len(pattern.replace("*", "")), reverse=True)
    matched = {
        name: next((each for each in patterns if fnmatchcase(name, each.replace("**/", "*"))), "") for name in files
    }
    assert sorted(name for name, pattern in matched.items() if not pattern) == []
    assert sorted(set(patterns) - set(matched.values())) == []


def test_the_packages_of_the_image_are_listed_with_the_licences_that_they_state() -> None:
    found = {name: licence_of(name) for name in packages_of_the_image()}
    assert dict(rows("What the image contains")) == found
