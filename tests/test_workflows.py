"""The workflows of GitHub, the script that runs their steps here, and the scripts and files of a release."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.programs import program

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install translume[dev]")
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github" / "workflows"
if not FOLDER.is_dir():
    pytest.skip("a source distribution has no workflows", allow_module_level=True)
WORKFLOWS: dict[str, dict[Any, Any]] = {
    path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))
}
JOBS = {(file, name): job for file, document in WORKFLOWS.items() for name, job in document["jobs"].items()}
STEPS = [(*place, step) for place, job in JOBS.items() for step in job.get("steps", ())]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_workflows_may_read_and_only_four_jobs_of_a_push_may_do_more() -> None:
    assert WORKFLOWS.keys() == {"ci.yml", "docs.yml", "release.yml", "wheels.yml"}
    assert [file for file, document in WORKFLOWS.items() if document["permissions"] != {"contents": "read"}] == []
    assert {place: job["permissions"] for place, job in JOBS.items() if "permissions" in job} == {
        ("docs.yml", "publish"): {"contents": "write"},
        ("release.yml", "publish"): {"id-token": "write"},
        ("release.yml", "image"): {"contents": "read", "packages": "write"},
        ("release.yml", "release"): {"contents": "write"},
    }


def test_each_action_is_one_commit_with_its_version_and_each_job_has_a_time_limit() -> None:
    lines = [line for path in FOLDER.glob("*.yml") for line in path.read_text(encoding="utf-8").splitlines()]
    used = {line.partition("uses: ")[2] for line in lines if re.search(r"\buses: (?!\./)", line)}
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []
    assert len(used) == len({each.partition("@")[0] for each in used}) == 11  # the same commit in all workflows
    assert [place for place, job in JOBS.items() if "timeout-minutes" not in job and "uses" not in job] == []


def test_steps_are_short_have_a_name_and_take_nothing_that_others_write_into_their_shell() -> None:
    commands = [(step.get("name", ""), step["run"]) for _, _, step in STEPS if "run" in step]
    assert [name for name, command in commands if not name or len(command.splitlines()) > 5] == []
    assert [command for _, command in commands if "${{" in command] == []


def test_steps_use_targets_of_the_makefile_and_scripts_that_exist() -> None:
    text = "\n".join(step["run"] for _, _, step in STEPS if "run" in step)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = set(re.findall(r"\bmake ([\w-]+)", text))
    assert used >= {"venv", "check", "test", "dist", "smoke", "docs-site", "workflows"}
    assert used - targets == set()
    assert [each for each in re.findall(r"scripts/[\w.]+", text) if not (ROOT / each).is_file()] == []


def test_each_python_of_the_classifiers_is_tested_on_both_processors() -> None:
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    found = program("scripts/run_workflow.py").combinations(JOBS["ci.yml", "tests"])
    for runner in ("ubuntu-24.04", "ubuntu-24.04-arm"):
        assert [each["python"] for each in found if each["os"] == runner] == versions


WORKFLOW = """
env: {A: one, B: two}
jobs:
  first:
    runs-on: ${{ matrix.os }}
    strategy: {matrix: {os: [RUNNER, windows-2022]}}
    env: {B: "${{ matrix.os }}"}
    steps:
      - uses: actions/checkout@v4
      - {name: Write, run: "echo $A $B $CI > made; cat made"}
      - {name: Image, run: docker build .}
      - {name: Key, run: echo, env: {KEY: "${{ secrets.KEY }}"}}
      - {name: Fail, run: "false | true"}
      - {name: After, run: echo after}
  second:
    runs-on: RUNNER
    steps:
      - {name: Clean, run: test ! -e made && test "$(python -c 'import sys; print(sys.prefix)')" != OUTER}
"""


def test_the_steps_of_a_workflow_are_run_in_a_clone_or_listed_with_a_reason(tmp_path: Path) -> None:
    runner = program("scripts/run_workflow.py").RUNNER
    text = WORKFLOW.replace("RUNNER", runner).replace("OUTER", sys.prefix)
    (tmp_path / "a.yml").write_text(text, encoding="utf-8")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    command = [sys.executable, str(ROOT / "scripts" / "run_workflow.py"), "a.yml", "--repository", "."]
    done = subprocess.run([*command, "--env", "A=1"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    rows = [line.split(" | ")[2:4] for line in done.stdout.splitlines() if line.startswith("| a.yml")]
    assert rows == [
        ["actions/checkout@v4", "the clone stands for it"],
        ["Write", "done"],
        ["Image", "needs Docker"],
        ["Key", "needs the value of ${{ secrets.KEY }}"],
        ["Fail", "failed (1)"],
        ["After", "not reached"],
        ["all 6", "needs windows-2022"],
        ["Clean", "done"],
    ]
    assert f"1 {runner} true\n" in done.stdout
    assert not (tmp_path / "made").exists()


CHANGELOG = """# Changelog
## [Unreleased]
- new, see [here](docs/a.md) and [there](https://b.c)
## [0.2.0] - 2026-12-01
### Added
- a thing
## [0.1.0]
- the first
"""


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    release = program("scripts/release_notes.py")
    assert release.section(CHANGELOG, "0.2.0") == "### Added\n- a thing"
    assert release.section(CHANGELOG, "0.1.0") == "- the first"
    assert release.section(CHANGELOG, "0.2") == ""
    text = release.section(CHANGELOG, "Unreleased")
    linked = "- new, see [here](https://github.com/a/b/blob/v0.2.0/docs/a.md) and [there](https://b.c)"
    assert release.notes(text, "v0.2.0", "a/b") == linked
    assert release.notes(text, "v0.2.0", "") == text
    cut = release.notes("a line\n" * 20_000, "v0.2.0", "")
    assert len(cut) <= release.LONGEST
    assert cut.endswith("a line\n\nThe rest is in CHANGELOG.md of v0.2.0.")


def test_a_tag_is_released_only_with_its_version_in_every_file(tmp_path: Path) -> None:
    release = program("scripts/release_notes.py")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    (tmp_path / "CITATION.cff").write_text('cff-version: 1.2.0\nversion: "0.1.0"\n', encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n', encoding="utf-8")
    assert release.problems(tmp_path, "v0.1.0") == []
    assert release.problems(tmp_path, "v0.3.0") == [
        "pyproject.toml: version 0.1.0, expected 0.3.0 as in the tag",
        'CITATION.cff: version "0.1.0", expected 0.3.0 as in the tag',
        "CHANGELOG.md: no section [0.3.0], or an empty one",
    ]
    assert release.problems(tmp_path, "0.1.0") == ["tag '0.1.0': expected one such as v0.2.0"]


def test_the_dry_run_of_the_next_release_prints_the_unreleased_changes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py"), "v0.2.0", "--unreleased"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("Model folders: writes format")
    assert 1_000 < len(done.stdout) <= program("scripts/release_notes.py").LONGEST + 1


def test_sites_of_versions_lie_beside_each_other_newest_first(tmp_path: Path) -> None:
    publish = program("scripts/publish_docs.py").publish
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("first", encoding="utf-8")
    for version in ("main", "0.9.0", "0.10.0", "0.2.0"):
        listed = publish(tmp_path / "site", tmp_path / "pages", version)
    assert listed == ["0.10.0", "0.9.0", "0.2.0", "main"]
    assert json.loads((tmp_path / "pages" / "versions.json").read_text(encoding="utf-8")) == listed
    assert "url=0.10.0/index.html" in (tmp_path / "pages" / "index.html").read_text(encoding="utf-8")
    (tmp_path / "site" / "index.html").write_text("second", encoding="utf-8")
    publish(tmp_path / "site", tmp_path / "pages", "0.9.0")
    assert (tmp_path / "pages" / "0.9.0" / "index.html").read_text(encoding="utf-8") == "second"
    with pytest.raises(SystemExit, match=r"^'\.\./x': expected a version such as 0\.2\.0, or main$"):
        publish(tmp_path / "site", tmp_path / "pages", "../x")


def test_the_recipe_of_conda_and_the_citation_have_the_facts_of_the_project() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == cited["version"] == PROJECT["version"]
    assert recipe["about"]["license"] == cited["license"] == PROJECT["license"]
    packages = [
        f"python {PROJECT['requires-python']}",
        *(re.sub(r"(?=[<>=])", " ", each, count=1) for each in PROJECT["dependencies"]),
    ]
    assert recipe["requirements"]["run"] == packages


def test_forms_of_issues_ask_for_the_command_the_version_and_the_data() -> None:
    forms = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
    }
    fields = {name: [each.get("id") for each in form.get("body", ())] for name, form in forms.items()}
    assert fields.keys() == {"bug", "config", "feature", "translation"}
    assert fields["bug"] == ["command", "expected", "version", "data", "settings"]
    for name, form in forms.items():
        assert name == "config" or form.keys() == {"name", "description", "labels", "body"}
