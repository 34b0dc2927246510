"""The whole demo with few updates: training, evaluation, inspection, and a second run."""

import math
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("babel", reason="the demo's extra is not installed")

from translume.cli import main
from translume.cli.experiments import bars, share
from translume.experiments.demo import TokenBelief, beliefs, demo_config, make_corpus


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


def test_probabilities_shown_equal_those_of_forced_decoding(demo: tuple[Path, Result]) -> None:
    from translume.translator import load

    translator = load(demo[0], device="cpu", dtype="fp32")
    translation = translator.translate("The soup must cook for 7 minutes.")
    tokens = beliefs(translator, translation.source, translation.hypotheses[0], runners_up=3)
    scored = translator.score(translation.source, translation.hypotheses[0])
    for token, log_prob in zip(tokens, scored.token_log_probs, strict=True):
        assert math.isclose(math.log(token.probability), log_prob, abs_tol=1e-4)
        assert len(token.runners_up) == 3
        assert token.probability + sum(probability for _, probability in token.runners_up) <= 1.000001


def test_the_length_of_a_bar_is_the_probability() -> None:
    sure = TokenBelief(token="▁Die", probability=0.75, runners_up=(("▁Der", 0.2), ("▁Das", 0.05)))
    wide = TokenBelief(token="汤", probability=1.0, runners_up=())
    assert list(bars([sure, wide])) == [
        "  ▁Die ███████████████░░░░░  75.0 %   ▁Der 20.0 %   ▁Das 5.0 %",
        "  汤   ████████████████████ 100.0 %",
    ]
    assert share(0.99999) == "99.9 %"


def test_the_demos_settings_are_valid_for_any_number_of_updates() -> None:
    for updates in (1, 2, 7, 1000):
        assert demo_config("en", "zh", updates=updates).training.updates == updates
