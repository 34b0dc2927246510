"""Run the `run:` steps of the Linux jobs of a GitHub workflow here, in a clean clone of the last commit.

    python scripts/run_workflow.py .github/workflows/*.yml --list
    python scripts/run_workflow.py .github/workflows/ci.yml
    python scripts/run_workflow.py .github/workflows/ci.yml --job packages --step "Build" --env PIP_EXTRA_INDEX_URL=

Prints a table: each step, whether it was executed or why not, and its seconds. The exit code is 1 if a step fails.
Actions (`uses:`) are not run: the clone stands for checkout, a new virtual environment for setup-python. Of a matrix,
the jobs for this machine's processor and this Python are run. It needs PyYAML.
"""

import argparse
import itertools
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {
    r"\bcibuildwheel --": "needs Docker", r"\bdocker ": "needs Docker", r"\bgh ": "needs GitHub",
    r"\bgit (fetch|push)\b": "needs the branch on GitHub", r"build/pages": "needs the branch on GitHub",
}  # fmt: skip
"""Why steps whose commands match a pattern cannot be run here."""
ACTIONS = {
    "actions/checkout": "the clone stands for it",
    "actions/setup-python": "a virtual environment stands for it",
    "actions/setup-node": "the machine's Node stands for it",
}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
RUNNER = "ubuntu-24.04-arm" if platform.machine() in ("aarch64", "arm64") else "ubuntu-24.04"


@dataclass
class Step:
    """A step of a job for one combination of its matrix.

    name: "all 5" for the five steps of a job of another machine.
    reason: why it is not executed; empty if it is.  environment: of the workflow, the job and the step.
    """

    workflow: str
    job: str
    name: str
    command: str
    reason: str
    environment: dict[str, str]
    seconds: float = 0.0
    result: str = ""


def combinations(job: dict[str, Any]) -> list[dict[str, str]]:
    """Return the values of a job's matrix, one combination each; one without values if it has no matrix."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", [])
    names = list(matrix)
    found = [dict(zip(names, values, strict=True)) for values in itertools.product(*matrix.values())]
    return found + included


def filled(text: str, values: dict[str, str]) -> str:
    """Return a text with the expressions that `values` knows replaced."""
    return re.sub(r"\$\{\{\s*(.+?)\s*\}\}", lambda match: values.get(match[1], match[0]), text)


def steps_of(path: Path, ref: str) -> Iterator[Step]:
    """Yield the steps of a workflow, with the reason of those that are not executed; one for a job of another machine.

    ref: the tag that stands for the one that starts the workflow.
    """
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, job in document["jobs"].items():
        for values in combinations(job):
            known = {f"matrix.{key}": str(value) for key, value in values.items()}
            known |= {"github.ref_name": ref, "github.ref_type == 'tag' && github.ref_name || 'main'": ref}
            runner = filled(job.get("runs-on", ""), known)
            shown = f"{name} ({', '.join(map(str, values.values()))})" if values else name
            absent = ""
            if "uses" in job:
                absent = f"the jobs of {job['uses']}"
            elif runner != RUNNER:
                absent = f"needs {runner}"
            elif values.get("python", PYTHON) != PYTHON:
                absent = f"needs Python {values['python']}"
            if absent:
                count = len(job.get("steps", ()))
                yield Step(path.name, shown, f"all {count}" if count else "", "", absent, {})
                continue
            for number, step in enumerate(job["steps"], 1):
                action, command = step.get("uses", ""), filled(step.get("run", ""), known)
                reason = ACTIONS.get(action.partition("@")[0], "an action of GitHub") if action else ""
                reason = reason or next((why for key, why in NEEDS.items() if re.search(key, command)), "")
                layers = (document.get("env", {}), job.get("env", {}), step.get("env", {}))
                variables = {key: filled(str(value), known) for layer in layers for key, value in layer.items()}
                unknown = re.search(r"\$\{\{.*?\}\}", command + "".join(variables.values()))
                if not reason and unknown:
                    reason = f"needs the value of {unknown[0]}"
                yield Step(path.name, shown, step.get("name") or action or f"step {number}", command, reason, variables)


def run(step: Step, folder: Path, python: Path, given: dict[str, str]) -> None:
    """Run a step as GitHub does, by `bash -eo pipefail`, and write down how it ended."""
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"CI": "true", "PATH": f"{python}{os.pathsep}{environment['PATH']}", **step.environment, **given}
    print(f"== {step.job}: {step.name}", flush=True)
    begun = time.monotonic()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.command],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    step.seconds, step.result = time.monotonic() - begun, f"failed ({done.returncode})" if done.returncode else "done"


def run_all(steps: list[Step], given: dict[str, str], repository: Path) -> None:
    """Run the steps, each job in a clone of its own. After one that fails the rest of its job is not run."""
    for _, job in itertools.groupby(steps, key=lambda step: (step.workflow, step.job)):
        chosen = [step for step in job if not step.reason]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory(prefix="workflow-") as name:
            folder, python = Path(name, "checkout"), Path(name, "python")
            subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(repository), str(folder)], check=True)
            uses_pip = any(re.search(r"\b(pip|make)\b", step.command) for step in chosen)  # takes seconds to install
            subprocess.run([sys.executable, "-m", "venv", *([] if uses_pip else ["--without-pip"]), python], check=True)
            for step in chosen:
                run(step, folder, python / "bin", given)
                if step.result != "done":
                    break


def table(steps: list[Step]) -> str:
    """Return a Markdown table of the steps."""
    rows = [
        f"| {step.workflow} | {step.job} | {step.name} | {step.reason or step.result or 'not reached'} | "
        f"{f'{step.seconds:.1f}' if step.seconds else ''} |"
        for step in steps
    ]
    return "\n".join(["| workflow | job | step | here | seconds |", "|---|---|---|---|---:|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflows", nargs="+", type=Path)
    parser.add_argument("--job", default="", help="only jobs whose name begins so")
    parser.add_argument("--step", default="", help="only steps whose name contains this")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="instead of the workflow's")
    parser.add_argument("--ref", default="v0.2.0", help="the tag that starts the workflow")
    parser.add_argument("--repository", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="print the table and run nothing")
    options = parser.parse_args()
    if wrong := [each for each in options.env if "=" not in each]:
        parser.error(f"--env {wrong[0]}: expected NAME=VALUE")
    steps = [step for path in options.workflows for step in steps_of(path, options.ref)]
    steps = [step for step in steps if step.job.startswith(options.job) and options.step in step.name]
    if not steps:
        parser.error("no step has such a name")
    if options.list:
        for step in steps:
            step.result = "is executed"
    else:
        run_all(steps, dict(each.split("=", 1) for each in options.env), options.repository)
    print(table(steps))
    sys.exit(any(step.result.startswith("failed") for step in steps))


if __name__ == "__main__":
    main()
