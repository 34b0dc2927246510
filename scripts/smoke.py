"""Run commands of the installed Translume in an empty folder, to see that a package works on a platform.

python scripts/smoke.py            # what the base has: no torch, no compiler, no network
python scripts/smoke.py --train    # a training of a few updates, and its evaluation; needs translume[train]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = "The village has 4,909 inhabitants.\nThe meeting is on Monday at 9:30.\n"
TARGETS = "这个村庄有4,909个居民。\n会议在星期一9:30举行。\n"
BASE = (
    "--version",
    "show demo",
    "docs init",
    "translate demo --input a.en --output out --quiet",
    "score demo a.en a.zh",
    "evaluate --hypotheses out/a.en a.zh --metrics exact_match",
)
TRAIN = (
    "train a.toml --out model",
    "evaluate model a.en a.zh",
    "translate model --input a.en --output out --quiet",
)
SETTINGS = """
[data]
train_source = "a.en"
train_target = "a.zh"
valid_source = "a.en"
valid_target = "a.zh"
[model]
width = 16
[training]
max_updates = 5
validate_every = 5
"""


def run(words: str, folder: Path) -> str:
    """Run a command, and return what it prints. Leaves with its errors if it fails."""
    # -P: the folder `src` of a checkout must not hide what is installed.
    done = subprocess.run(
        [sys.executable, "-P", "-X", "utf8", "-m", "translume", *words.split()],
        cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"translume {words}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"translume {words}: {(done.stdout.strip().splitlines() or ['done'])[0]}", flush=True)
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("a.en", SOURCES), ("a.zh", TARGETS), ("a.toml", SETTINGS)):
            (folder / file).write_text(text * (20 if file != "a.toml" and "--train" in sys.argv else 1), "utf-8")
        for words in TRAIN if "--train" in sys.argv else BASE:
            run(words, folder)
        found = (folder / "out" / "a.en").read_text(encoding="utf-8")
        if found.count("\n") != (folder / "a.en").read_text(encoding="utf-8").count("\n"):
            sys.exit(f"out/a.en: found {found!r}, expected as many lines as in a.en")
        if "--train" not in sys.argv and found.splitlines()[0] != TARGETS.splitlines()[0]:
            sys.exit(f"out/a.en: found {found!r}, expected {TARGETS!r}")


if __name__ == "__main__":
    main()
