"""The whole demo with few updates: training, evaluation, inspection, and a second run."""

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("babel", reason="the demo's extra is not installed")

from translume.cli import main
from translume.cli.demo import bars, share
from translume.experiments.demo import demo_config, make_corpus
from translume.inspection import trace
from translume.translator import load


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("demo") / "models" / "demo"
    return folder, run(folder)


def run(folder: Path) -> Result:
    words = ["demo", "--out", str(folder), "--pairs", "200", "--updates", "2", "--threads", "1", "--languages", "en-de"]
    with pytest.MonkeyPatch.context() as patch:  # translating 1,000 test pairs takes seconds
        patch.setattr("translume.experiments.demo.make_corpus", partial(make_corpus, held_out=70))
        return CliRunner().invoke(main, words, prog_name="translume", catch_exceptions=False)


def test_the_demo_prints_metrics_translations_and_next_steps(demo: tuple[Path, Result]) -> None:
    folder, result = demo
    assert result.exit_code == 0, result.stderr
    assert "On 70 test pairs that were not in training:\nexact match 0.0 %\n  exact match|" in result.stdout
    assert "5 sentences it was not trained on:" in result.stdout
    assert "The predicted distribution at each token of one of them" in result.stdout
    assert f"  translume evaluate {folder} {folder}-corpus/test.en {folder}-corpus/test.de\n" in result.stdout
    assert "200 pairs for training, 70 for validation, 70 for test" in result.stderr
    assert (folder.parent / "demo-corpus" / "demo.toml").exists()


def test_a_second_run_reports_that_the_demo_is_finished(demo: tuple[Path, Result]) -> None:
    folder, first = demo
    again = run(folder)
    assert again.exit_code == 0
    assert f"{folder}: already finished, after 2 updates; to continue, raise training.updates\n" in again.stderr
    assert again.stdout == first.stdout


def test_bars_show_the_probability_of_each_token_and_the_likeliest_others(demo: tuple[Path, Result]) -> None:
    traced = trace(load(demo[0], device="cpu", dtype="fp32"), "The soup must cook for 7 minutes.", k=4, show=())
    lines = list(bars(traced))
    for line, token, step in zip(lines, traced.target_tokens, traced.steps, strict=True):
        assert line.split()[0] == token.text
        assert line.count("█") == round(20 * step.p_model) == 20 - line.count("░")
        others = [each for each in step.top_model.candidates if each.id != token.id][:3]
        assert line.endswith("   ".join(f"{each.text} {share(each.p_model)}" for each in others))
    assert [share(p) for p in (0.75, 1.0, 0.99999)] == ["75.0 %", "100.0 %", "99.9 %"]


def test_the_demos_settings_are_valid_for_any_number_of_updates() -> None:
    for updates in (1, 2, 7, 1000):
        assert demo_config("en", "zh", updates=updates).training.updates == updates
