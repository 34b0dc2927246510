"""The base and its extras: what they install, what the commands say without them, and what needs none."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from translume.cli.group import COMMANDS
from translume.errors import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "checkpoint" / "golden" / "format_2"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]
MODULES_OF = {
    "pyyaml": {"yaml"}, "lingua-language-detector": {"lingua"}, "pillow": {"PIL"}, "mlflow-skinny": {"mlflow"},
    "protobuf": {"google", "google.protobuf"},
}  # fmt: skip
"""The names that import a package, where they are others than its own."""
NEVER_IMPORTED = {"redis", "tensorboard"}
"""Packages of extras that other packages import: limits and torch."""


def extras_in(extra: str) -> set[str]:
    """Return an extra and those that it includes."""
    inner = re.findall(r"translume\[([\w,]+)\]", " ".join(OPTIONAL[extra]))
    return {extra}.union(*(extras_in(name) for names in inner for name in names.split(",")))


def packages_in(*extras: str) -> set[str]:
    """Return the packages that extras install, as pyproject.toml names them."""
    lines = [line for extra in extras for name in extras_in(extra) for line in OPTIONAL[name]]
    return {re.split(r"[<>=\[]", line)[0] for line in lines} - {"translume"}


def modules_in(*extras: str) -> set[str]:
    """Return the names that import the packages of extras."""
    return set[str]().union(*(MODULES_OF.get(name, {name.replace("-", "_")}) for name in packages_in(*extras)))


def test_each_package_is_named_with_an_extra_that_installs_it() -> None:
    assert {package for package, extra in EXTRAS.items() if package not in modules_in(extra)} == set()
    assert modules_in(*(OPTIONAL.keys() - {"dev"})) == EXTRAS.keys() | NEVER_IMPORTED


def test_the_extra_all_has_every_extra_of_a_user() -> None:
    assert extras_in("all") == OPTIONAL.keys() - {"dev"}


def test_the_table_of_the_readme_has_every_command_and_each_extra_once() -> None:
    rows = re.findall(r"^\| (none|`[a-z2`, ]+`) \| (.+) \|$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    extras = [name for names, _ in rows for name in re.findall(r"`(\w+)`", names)]
    commands = [name for _, use in rows for name in re.findall(r"`(\w+)`", use.partition(";")[0])]
    assert sorted(extras) == sorted(OPTIONAL.keys() - {"dev"})
    assert set(commands) == COMMANDS.keys()


def test_the_locked_packages_are_those_of_the_locked_extras() -> None:
    extras = re.search(r"^LOCKED_EXTRAS := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    locked = re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    plain = {re.sub(r"[-_.]+", "-", name).lower() for name in locked}
    base = {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]}
    wanted = base | packages_in(*extras[1].split(","))
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in wanted} - plain == set()


RUN = """
import json, sys
from click.testing import CliRunner
missing, commands = json.loads(sys.stdin.read())
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Finder())
from translume.cli import main
for words in commands:
    done = CliRunner().invoke(main, words.split(), prog_name="translume")
    print(json.dumps([done.exit_code, done.stderr]))
"""


def run_without(packages: set[str], commands: list[str], folder: Path) -> list[list[object]]:
    """Return the exit codes and standard errors of commands in one process that lacks some packages."""
    for name in ("a.en", "a.de", "a.docx", "a.html", "a.en.zst", "a.parquet", "a.toml", "a.weights.h5"):
        (folder / name).write_text("a house\na boat\n", encoding="utf-8")
    (folder / "a.toml").write_text("data = {train_source = 'a.en', train_target = 'a.de'}", encoding="utf-8")
    (folder / "latin.srt").write_bytes(b"caf\xe9")
    (folder / "a.npz").write_bytes(b"PK\x03\x04")
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([sorted(packages), commands]), cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("missing", "cases"),
    [
        (EXTRAS.keys() - {"torch", "anyio"}, {
            "translate MODEL --input a.en --output new --quiet": "",
            "score MODEL a.en a.de": "",
            "show MODEL": "",
            "evaluate --hypotheses a.en a.de --metrics exact_match": "",
            "evaluate MODEL a.en a.de": "translume evaluate: needs sacrebleu; evaluate",
            "evaluate --hypotheses a.en a.de --metrics wer": "translume evaluate: needs rapidfuzz; evaluate",
            "evaluate --hypotheses a.en a.de --metrics rouge1": "translume evaluate: needs rouge_score; metrics",
            "translate MODEL a.en --set decoding.utility=bleu --set decoding.beam=2 --set decoding.nbest=2":
                "decoding.utility: 'bleu': needs sacrebleu; evaluate",
            "translate MODEL a.docx": ".docx files: needs lxml; documents",
            "translate MODEL latin.srt": "text that is not UTF-8: needs charset_normalizer; documents",
            "translate MODEL a.html --out new.html --quiet": "",
            "translate MODEL --input a.en.zst --output out": "a.en.zst: needs zstandard; zstd",
            "translate MODEL --ray auto --input a.en --output out": "--ray: needs ray; cluster",
            "init a.en.zst a.de": "a.en.zst: needs zstandard; zstd",
            "translate MODEL --input memory://a.en --output out": "memory://a.en: needs fsspec; remote",
            "init a.parquet": "a.parquet: needs pyarrow; parquet",
            "show MODEL --plot a.png": "translume show: needs matplotlib; train",
            "serve MODEL": "translume serve: needs fastapi; serve",
            "demo": "translume demo: needs babel; demo",
            "tune a.toml out --minutes 1": "translume tune: needs optuna; tune",
            "export MODEL onnx out": "export: needs onnx; onnx",
            "export MODEL ctranslate2 out": "export: needs ctranslate2; ctranslate2",
            "import hf://a/b out": "hf://: needs filelock; export",
            "push MODEL a/b --dry-run": "translume push: needs huggingface_hub; export",
        }),
        ({"h5py"}, {"import a.weights.h5 out --vocabs a.en a.de": "a.weights.h5: needs h5py; keras"}),
        ({"torch"}, {
            "evaluate --hypotheses a.en a.de --metrics exact_match --by length --source a.en": "",
            "train a.toml": "translume train: needs torch; train",
            "heads a.toml": "translume heads: needs torch; train",
            "sweep a.toml": "translume sweep: needs torch; train",
            "import a.npz out": "translume import: needs torch; train",
            "inspect MODEL a": "translume inspect: needs torch; train",
            "evaluate MODEL a.en a.de --fit-temperature": "translume evaluate: needs torch; train",
        }),
    ],
    ids=["every extra", "h5py", "torch"],
)  # fmt: skip
def test_a_command_works_without_extras_or_says_in_one_line_what_to_install(missing, cases, tmp_path: Path) -> None:
    found = run_without(missing, [words.replace("MODEL", str(GOLDEN)) for words in cases], tmp_path)
    sentences = [re.sub("needs (.+); (.+)", r"needs \1, which is not installed; pip install 'translume[\2]'", text)
                 for text in cases.values()]  # fmt: skip
    assert found == [[1, f"Error: {sentence}\n"] if sentence else [0, ""] for sentence in sentences]
