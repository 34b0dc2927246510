"""Print the notes of a release from CHANGELOG.md, after checking that the tag names the version of this checkout.

    python scripts/release_notes.py v0.2.0                  # the section [0.2.0]
    python scripts/release_notes.py v0.2.0 --unreleased     # a dry run: the section [Unreleased], whatever the version

It needs only the standard library. Links to files of the repository lead to the tag, if $GITHUB_REPOSITORY is set.
"""

import argparse
import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 125_000
"""Maximum number of characters of the notes of a release on GitHub."""


def section(changelog: str, name: str) -> str:
    """Return the text below the heading `## [name]`, up to the next such heading; empty if there is none."""
    found = re.search(rf"^## \[{re.escape(name)}\].*\n((?:(?!## \[).*\n?)*)", changelog, re.MULTILINE)
    return found[1].strip() if found else ""


def problems(root: Path, tag: str) -> list[str]:
    """Return what keeps a tag from being released: other versions, and a changelog without the version."""
    version = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        return [f"tag {tag!r}: expected one such as v0.2.0"]
    stated = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found = [f"pyproject.toml: version {stated}, expected {version} as in the tag"] if stated != version else []
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited is None or cited[1].strip('"') != version:
        found.append(f"CITATION.cff: version {cited[1] if cited else 'missing'}, expected {version} as in the tag")
    if not section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version):
        found.append(f"CHANGELOG.md: no section [{version}], or an empty one")
    return found


def notes(text: str, tag: str, repository: str) -> str:
    """Return a section of the changelog with absolute links, cut to what GitHub accepts."""
    if repository:
        text = re.sub(r"\]\((?![a-z]+:|#)", f"](https://github.com/{repository}/blob/{tag}/", text)
    if len(text) > LONGEST:
        end = f"\n\nThe rest is in CHANGELOG.md of {tag}."
        text = text[: text.rindex("\n", 0, LONGEST - len(end))] + end
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag")
    parser.add_argument("--unreleased", action="store_true", help="a dry run with the section [Unreleased]")
    options = parser.parse_args()
    if not options.unreleased and (found := problems(ROOT, options.tag)):
        sys.exit("\n".join(found))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    text = section(changelog, "Unreleased" if options.unreleased else options.tag.removeprefix("v"))
    if not text:
        sys.exit("CHANGELOG.md: no section [Unreleased], or an empty one")
    print(notes(text, options.tag, os.environ.get("GITHUB_REPOSITORY", "")))


if __name__ == "__main__":
    main()
