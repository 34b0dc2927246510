"""The documentation: marked snippets run, generated pages are current, links and names of code are valid.

Fences whose info string contains `run` are executed. Those of a page run in order in one folder, which contains only a
reader's files (`train.en`, `train.de`, `test.en`, `test.de`):
```python run     a script that must succeed
```console run    each line after `$ ` is a command that must succeed; the other lines are its output
"""

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
from click.testing import CliRunner
from tests.programs import program

from translume.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    path
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("*.md")),
    )
    if path.exists()
]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
SECONDS = 600
"""Time limit of a snippet."""

every_page = pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    language: str
    text: str
    line: int


def snippets_of(page: Path) -> list[Snippet]:
    """Return the fences of a page that are marked to run."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(language=match[1], text=match[3], line=text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
        if "run" in match[2].split()
    ]


def commands_of(snippet: Snippet) -> Iterator[list[str]]:
    if snippet.language == "python":
        yield ["bash", "-c", 'python -c "$0"', snippet.text]
        return
    joined = snippet.text.replace("\\\n", " ")
    for line in joined.splitlines():
        if line.startswith("$ "):
            yield ["bash", "-c", f"set -o pipefail; {line[2:]}"]


PHRASES = {
    "A man": "Ein Mann",
    "A woman": "Eine Frau",
    "The child": "Das Kind",
    "The dog": "Der Hund",
    "is riding": "fährt",
    "is watching": "beobachtet",
    "is painting": "malt",
    "a bicycle.": "ein Fahrrad.",
    "a house.": "ein Haus.",
    "a boat.": "ein Boot.",
    "two cats.": "zwei Katzen.",
    "some bread.": "etwas Brot.",
}


def write_corpus(folder: Path) -> None:
    """Write a reader's files: 96 pairs to train with, 12 to test with."""
    words = list(PHRASES)
    whole = list(itertools.product(words[:4], words[4:7], words[7:]))
    for name, sentences in {"train": whole * 2, "test": whole[::5]}.items():
        for language, translate in {"en": str, "de": PHRASES.__getitem__}.items():
            lines = (" ".join(map(translate, parts)) for parts in sentences)
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path, warm_python: Path) -> dict[str, str]:
    """Return an environment with `translume` and `python` on the path; training runs are shortened."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in {"python": "", "translume": "-c 'from translume.cli import main; main()'"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{warm_python}" {arguments} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "TRANSLUME_SHORT": "1",
    }


@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if snippets_of(path)],
    ids=lambda path: path.name if isinstance(path, Path) else None,
)
def test_marked_snippets_run(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    write_corpus(folder)
    for snippet in snippets_of(page):
        for command in commands_of(snippet):
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            place = f"{page.relative_to(ROOT)}:{snippet.line}"
            assert done.returncode == 0, f"{place}: {command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


INLINE = re.compile(r"`(translume [^`\n]+)`")
SHELL_WORDS = re.compile(r"(?:\||&&|;|&|>|>>|<|2>)")


def lines_of_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a page, in fences and in lines of text, with their words; those with gaps are left out."""
    text = page.read_text(encoding="utf-8")
    fences = [match[3] for match in FENCE.finditer(text) if match[1] in ("console", "bash", "sh", "")]
    found = [line.removeprefix("$ ") for fence in fences for line in fence.replace("\\\n", " ").splitlines()]
    for line in [*found, *INLINE.findall(text)]:
        if re.search(r"\u2026|\.\.\.|\[|\$\(|<\w", line) or "translume" not in line:
            continue
        try:
            words = shlex.split(line.replace("<(", " <( "), comments=True)
        except ValueError:
            continue
        part: list[str] = []
        for word in [*words, ";"]:
            if not SHELL_WORDS.fullmatch(word):
                part.append(word)
                continue
            if "translume" in part[:1]:
                yield line, part[1:]
            part = []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_commands_are_parsed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("translume.checkpoint.model_folder", lambda name, **more: Path(name))
    monkeypatch.setattr("translume.cli.group.load_parts", lambda words: None)
    monkeypatch.setattr(click.Context, "invoke", lambda *values, **more: None)
    wrong = []
    for line, words in lines_of_commands(page):
        try:
            main.main(words, "translume", standalone_mode=False)
        except (click.MissingParameter, click.BadOptionUsage, click.exceptions.NoArgsIsHelpError):
            continue  # a command or an option that is only named
        except (click.ClickException, SystemExit) as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def programs_of(page: Path) -> list[str]:
    """Return the Python programs of a page: a fence that begins with an import begins one, the others continue it."""
    programs: list[str] = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match[1] == "python":
            if not programs or match[3].startswith(("import ", "from ")):
                programs.append("")
            programs[-1] += match[3]
    return programs


def test_python_examples_pass_mypy_strict(tmp_path: Path) -> None:
    for page in PAGES:
        for number, text in enumerate(programs_of(page), start=1):
            name = f"page_{page.stem.replace('-', '_')}_{number}.py"
            (tmp_path / name).write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "src", *map(str, sorted(tmp_path.glob("*.py")))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "name", ["settings.md", "cli.md", "api.md", "init.md", "trace.schema.json", "corpus.schema.json"]
)
def test_generated_pages_are_up_to_date(name: str) -> None:
    stored = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert stored == program("scripts/generate_docs.py").PAGES[name](), f"docs/{name} is stale: run `make docs`"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


def names_in(path: Path) -> set[str]:
    """Return every class, function and top-level value of a module, and members as `Class.name`."""
    found: set[str] = set()

    def gather(nodes: list[ast.stmt], prefix: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                gather(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    gather(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


@every_page
def test_links_and_names_of_code_are_valid(page: Path) -> None:
    wrong = []
    for text, address in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", address):
            continue
        path, _, anchor = unquote(address).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            wrong.append(f"[{text}]({address}): no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            wrong.append(f"[{text}]({address}): no such heading")
        elif target.suffix == ".py" and text.startswith("`") and not text.strip("`").endswith(".py"):
            name = text.strip("`").removesuffix("()")
            if name not in names_in(target):
                wrong.append(f"[{text}]({address}): {target.name} has no {name}")
    assert not wrong


@every_page
def test_paths_written_as_code_exist(page: Path) -> None:
    written = re.findall(
        r"`((?:src/translume|tests|docs|scripts|benchmarks|recipes)/[\w./-]+)`", page.read_text("utf-8")
    )
    assert not [path for path in written if not (ROOT / path).exists()]


def test_each_behaviour_names_a_test() -> None:
    named = re.findall(
        r"`(tests/\w[\w/]*\.py)::(\w+)[^`]*` \|$", (ROOT / "docs/behaviour.md").read_text(), re.MULTILINE
    )
    assert len(named) > 100
    missing = [(file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_the_commands_page_does_not_depend_on_earlier_use_of_a_command():
    CliRunner().invoke(main, ["translate", "--help"])
    stored = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert stored == program("scripts/generate_docs.py").PAGES["cli.md"]()
