"""Pairs scored by models, and the filters of `data clean` that use the scores."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.generators import untrained_generator
from tests.translator.conftest import ALPHABET

from translume.checkpoint import save_model
from translume.cli import main
from translume.config.clean import CleanSettings
from translume.data import clean as module
from translume.data.clean import score
from translume.data.cleaning import KEPT
from translume.data.filters import DROPS
from translume.data.pairs import Origin
from translume.errors import DataError
from translume.translator import Translator
from translume.translator.pair_scores import domain_scorer, dual_scorer

PAIRS = [("a dog runs", "ein hund"), ("cats", "katzen schlafen"), ("z", "b c d"), ("who?", "wer?"), ("to be", "sein")]


def entropy(model: Translator, source: str, target: str) -> float:
    found = model.score(source, target)
    return -found.log_prob / len(found.tokens)


def test_dual_cross_entropy_is_that_of_the_formula(make: Callable[..., Translator]) -> None:
    forward, backward = make(seed=3), make(seed=7)
    found = dual_scorer(forward, backward)(PAIRS)
    for value, (source, target) in zip(found, PAIRS, strict=True):
        first, second = entropy(forward, source, target), entropy(backward, target, source)
        assert value == pytest.approx(math.exp(-abs(first - second) - (first + second) / 2), rel=1e-4)


@pytest.mark.parametrize("pair", [("a" * 41, "b"), ("a", "b" * 41), ("a" * 41, "b" * 41)])
def test_a_pair_that_is_too_long_has_the_score_0(make: Callable[..., Translator], pair: tuple[str, str]) -> None:
    short, long = make(max_positions=41), make(max_positions=97)
    for models in ((short, short), (short, long), (long, short)):
        found = dual_scorer(*models)([PAIRS[0], pair, PAIRS[1]])
        assert found[1] == 0
        assert (found[[0, 2]] == dual_scorer(*models)(PAIRS[:2])).all()
    assert dual_scorer(long, long)([pair])[0] > 0


def test_the_difference_of_language_models_is_per_token_of_the_general_one() -> None:
    inside, general = untrained_generator([ALPHABET]), untrained_generator([ALPHABET], width=48)
    for side in (0, 1):
        found = domain_scorer(inside, general, side=side)(PAIRS)
        for value, pair in zip(found, PAIRS, strict=True):
            first, second = inside.score(pair[side]), general.score(pair[side])
            assert value == pytest.approx((first.log_prob - second.log_prob) / len(second.tokens), abs=1e-5)


def test_texts_are_scored_together_as_alone() -> None:
    generator = untrained_generator([ALPHABET])
    texts = ["a dog", "", "x" * 97, "yes."]  # longer than the context, too
    for text, found in zip(texts, generator.score_all(texts), strict=True):
        alone = generator.score(text)
        assert found.tokens == alone.tokens
        assert found.token_log_probs == pytest.approx(alone.token_log_probs, abs=1e-5)


def origin_of(folder: Path, values: list[float]) -> Origin:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{value!r}\tx\n" for value in values), encoding="utf-8")
    return Origin(file=str(path), target_file="", columns=(), weight=1.0)


def number(pairs: Any) -> Any:
    return np.array([float(source) for source, _ in pairs])


SCORES = st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=60)


@given(SCORES, st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 0.9]), st.sampled_from([2, 7, 4096]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_kept_pairs_below_a_value_or_a_quantile_are_dropped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[float, bool]],
    least: float,
    share: float,
    size: int,
) -> None:
    monkeypatch.setattr(module, "_BLOCK", size)
    values, kept = np.array([value for value, _ in rows]), np.array([keep for _, keep in rows])
    codes = np.where(kept, KEPT, DROPS.index("ratio")).astype(np.int8)
    chosen = CleanSettings(filters="dual", min_dual=least, dual_quantile=share)
    found = score(origin_of(tmp_path, values.tolist()), codes, {"dual": number}, chosen, tmp_path, lambda done: None)
    if share and kept.any():
        least = float(np.quantile(values[kept].astype(np.float32), share, method="lower"))
    assert found == {"dual_threshold": pytest.approx(least)}
    dropped = codes == DROPS.index("dual")
    assert (dropped == (kept & (values.astype(np.float32) < np.float32(least)))).all()
    assert (codes[~kept] == DROPS.index("ratio")).all()
    assert dropped.sum() <= share * kept.sum() or not share
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.tsv"]


def test_a_pair_without_a_score_is_dropped(tmp_path: Path) -> None:
    codes = np.full(3, KEPT, np.int8)
    chosen = CleanSettings(filters="domain", domain_quantile=0.4)
    score(origin_of(tmp_path, [math.nan, 1.0, 2.0]), codes, {"domain": number}, chosen, tmp_path, lambda done: None)
    assert codes.tolist() == [DROPS.index("domain"), KEPT, KEPT]


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    origin = origin_of(tmp_path, [0.5, 0.25])
    for count in (1, 3):
        with pytest.raises(DataError, match="changed while it was read"):
            score(origin, np.full(count, KEPT, np.int8), {"dual": number}, CleanSettings(), tmp_path, lambda done: None)


@pytest.fixture(scope="module")
def models(make: Callable[..., Translator], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    found = {"there": make(seed=3), "back": make(seed=7)}
    found |= {"in": untrained_generator([ALPHABET]), "general": untrained_generator([ALPHABET], width=48)}
    for name, model in found.items():
        save_model(folder / name, model.checkpoint)
    return {str(folder / name): model for name, model in found.items()}


def run(files: tuple[Path, Path], out: Path, *words: str) -> Result:
    common = ("--out", str(out), "--only", "length", "--workers", "1", "--json")
    return CliRunner().invoke(main, ["data", "clean", *map(str, files), *common, *words], prog_name="translume")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "a.en", tmp_path / "a.de"
    for side, path in enumerate(found):
        path.write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    return found


def test_the_command_drops_by_quantile_and_counts(
    models: dict[str, Any], files: tuple[Path, Path], tmp_path: Path
) -> None:
    there, back, inside, general = models
    words = ("--dual", there, back, "--set", "clean.dual_quantile=0.5", "--set", "clean.min_characters=2")
    result = run(files, tmp_path / "new", *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    scores = dual_scorer(models[there], models[back])([pair for pair in PAIRS if pair != PAIRS[2]])
    assert found["dropped"] == {"length": 1, "dual": 1}
    assert (found["read"], found["kept"]) == (5, 3)
    assert found["learned"]["dual_threshold"] == pytest.approx(np.quantile(scores, 0.5, method="lower"), rel=1e-3)
    assert len(found["examples"]["dual"]) == 1
    words = ("--domain", inside, general, "--set", "clean.domain_side=target", "--set", "clean.min_domain=9")
    assert json.loads(run(files, tmp_path / "none", *words).stdout)["dropped"] == {"domain": 5}


def test_what_cannot_score_is_one_line(models: dict[str, Any], files: tuple[Path, Path], tmp_path: Path) -> None:
    there, _, inside, _ = models
    result = run(files, tmp_path / "new", "--also", "dual")
    assert (result.exit_code, result.stderr) == (
        1, "Error: clean.filters: found 'dual', expected two models for it (--dual)\n",
    )  # fmt: skip
    result = run(files, tmp_path / "new", "--dual", there, inside)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {inside}: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()
