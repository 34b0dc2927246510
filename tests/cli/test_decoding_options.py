"""Strategies, ensembles, constraints and coverage on the command line; options that have no effect are refused."""

from pathlib import Path

import pytest

from translume.config import Config
from translume.config.decoding import STRATEGIES
from translume.translator.constraints import places

TEXT = "one two\nthree\nseven nine\n"
SETTINGS = """
data = {source_language = "en", target_language = "de", train_source = "train.en", train_target = "train.de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 7, max_tokens = 256, warmup_updates = 2, precision = "fp32"}
"""


@pytest.fixture(scope="module")
def files(run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model and what it was trained on; targets are the words spelled backwards."""
    folder = tmp_path_factory.mktemp("options")
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
    sources = [f"{first} {second}\n" for first in words for second in words]
    (folder / "train.en").write_text("".join(sources), encoding="utf-8")
    (folder / "train.de").write_text("".join(f"{text[-2::-1]}\n" for text in sources), encoding="utf-8")
    (folder / "en-de.toml").write_text(SETTINGS, encoding="utf-8")
    stored = ["--set", "decoding.seed=5", "--set", "decoding.top_p=0.5", "--set", "decoding.samples=4"]
    for name, options in (("model", []), ("stored", stored), ("other", ["--set", "tokenizer.kind=byte"])):
        assert run("train", folder / "en-de.toml", "--out", folder / name, *options).exit_code == 0
    (folder / "terms.tsv").write_text("one\tten six\n", encoding="utf-8")
    (folder / "one-field.tsv").write_text("one\n", encoding="utf-8")
    return folder


@pytest.fixture
def translate(run, files: Path):
    """Return a function that translates TEXT, or another text, with the model."""
    return lambda *words, text=TEXT: run("translate", files / "model", *words, text=text)


def contains(text: str, phrase: str) -> bool:
    return bool(places(phrase, text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seed 3", "decoding.seed: strategy 'beam' does not read it, expected 'sampling' or 'stochastic'"),
        ("--set decoding.top_k=3", "decoding.top_k: strategy 'beam' does not read it, expected 'sampling'"),
        ("--strategy stochastic --samples 2 --top-p 0.5",
         "decoding.top_p: strategy 'stochastic' does not read it, expected 'sampling'"),
        ("--strategy sampling --nbest 3", "decoding.nbest: found 3, expected at most samples = 1"),
        ("--strategy sampling --top-p 0", "decoding.top_p: found 0.0, expected greater than 0"),
        ("--strategy sampling --utility bluer", "decoding.utility: found 'bluer'; did you mean 'bleu'?"),
        ("--strategy samplin", "decoding.strategy: found 'samplin'; did you mean 'sampling'?"),
        ("--average probability", "--average probability: expected --ensemble as well, a model to average with"),
        ("--patience 2 --stop optimal", "decoding.patience: found 2.0 with stop = 'optimal', expected stop = 'first'"),
        ("--strategy diverse --beam 6 --groups 4", "decoding.groups: found 4, expected a divisor of beam = 6"),
        ("--groups 2", "decoding.groups: strategy 'beam' does not read it, expected 'diverse'"),
        ("--ensemble {files}/model --workers 2", "--workers 2 cannot be combined with --ensemble"),
        ("--constraints {files}/one-field.tsv",
         "{files}/one-field.tsv:1: found 1 field, expected 2 separated by a tab: a source term and a target term"),
        ("--constraints {files}/one-field.tsv --strategy sampling",
         "decoding.strategy: found 'sampling' with constraints, expected 'beam' or 'greedy'"),
    ],
)  # fmt: skip
def test_impossible_options_are_one_line_errors(translate, files: Path, words: str, message: str) -> None:
    found = translate(*words.format(files=files).split())
    assert (found.exit_code, found.stderr, found.stdout) == (1, f"Error: {message.format(files=files)}\n", "")


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        ("--strategy greedy --beam 7", "decoding.beam: strategy 'greedy' does not read it, expected 'beam'"),
        ("--ensemble {files}/other", "ensemble: model 2 has a source vocabulary of "),
    ],
)
def test_other_errors_are_one_line(translate, files: Path, words: str, begin: str) -> None:
    found = translate(*words.format(files=files).split())
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert found.stderr.startswith(f"Error: {begin}")


def test_stored_settings_of_other_strategies_are_not_refused(run, files: Path) -> None:
    assert run("translate", files / "stored", "--strategy", "greedy", "--max-length", "5", text=TEXT).exit_code == 0


def test_sampling_depends_on_the_seed_only(translate) -> None:
    words = ["--strategy", "sampling", "--samples", "3", "--nbest", "3", "--max-length", "9"]
    once = translate(*words, "--seed", "4")
    assert once.exit_code == 0, once.stderr
    assert once.stdout.count("\n") == 9
    assert translate(*words, "--seed", "4").stdout == once.stdout
    assert translate(*words, "--seed", "5").stdout != once.stdout
    last = [line.split("\t")[2] for line in once.stdout.split("\n")[6:9]]
    alone = translate(*words, "--seed", "4", text="seven nine\n").stdout.split("\n")[:3]
    assert [line.split("\t")[2] for line in alone] == last


def test_minimum_bayes_risk_on_the_command_line(translate) -> None:
    words = ["--strategy", "sampling", "--samples", "6", "--utility", "chrf", "--temperature", "0.5", "--top-k", "9"]
    assert translate(*words, "--min-p", "0.01", "--epsilon", "0.001").exit_code == 0


def test_help_names_every_strategy(run) -> None:
    shown = " ".join(run("translate", "--help").stdout.split())
    assert all(name in shown for name in STRATEGIES)
    assert all(flag in shown for flag in ("--seed", "--samples", "--temperature", "--top-k", "--top-p", "--utility"))


def test_ensemble_of_a_model_with_itself_equals_the_model(translate, files: Path) -> None:
    alone = translate("--max-length", "9")
    for average in ([], ["--average", "log_probability"]):
        both = ["--ensemble", files / "model", "--ensemble", files / "model"]
        together = translate("--max-length", "9", *both, *average)
        assert (together.exit_code, together.stderr, together.stdout) == (0, alone.stderr, alone.stdout)


def test_a_diverse_beam_writes_different_targets(translate) -> None:
    words = ["--strategy", "diverse", "--beam", "4", "--groups", "2", "--diversity", "0.8", "--nbest", "4"]
    found = translate(*words, "--max-length", "9")
    assert found.exit_code == 0, found.stderr
    for line in "123":
        targets = [each for each in found.stdout.splitlines() if each.startswith(f"{line}\t")]
        assert 1 < len(targets) <= 4
        scores = [float(each.split("\t")[1]) for each in targets]
        assert scores == sorted(scores, reverse=True)


def test_coverage_and_patience_are_flags(translate) -> None:
    words = ["--coverage-penalty", "0.5", "--stop", "first", "--patience", "2", "--max-length", "9", "--nbest", "2"]
    found, plain = translate(*words), translate("--max-length", "9", "--nbest", "2")
    assert found.exit_code == 0
    one, other = ([line.split("\t")[1] for line in each.stdout.splitlines()] for each in (found, plain))
    assert one != other


def test_constraints_per_line_appear_in_the_translations(translate, tmp_path: Path) -> None:
    (tmp_path / "phrases.tsv").write_text("\n\t\neins\tten six\n", encoding="utf-8")
    found = translate("--constraints-per-line", tmp_path / "phrases.tsv", text="one\n\none two\n")
    assert (found.exit_code, found.stdout.count("\n")) == (0, 3)
    assert all(contains(found.stdout.split("\n")[2], phrase) for phrase in ("eins", "ten six"))
    (tmp_path / "phrases.tsv").write_text("eins\n", encoding="utf-8")
    found = translate("--constraints-per-line", tmp_path / "phrases.tsv", text="one\ntwo\n")
    message = "Error: line 2: found no constraints for the text, expected as many lists of constraints as texts\n"
    assert (found.exit_code, found.stderr) == (1, message)


def test_terminology_is_applied_to_sources_that_contain_the_term(translate, files: Path) -> None:
    found = translate("--constraints", files / "terms.tsv", text="one two\nthree\n")
    assert found.exit_code == 0, found.stderr
    lines = found.stdout.split("\n")
    assert contains(lines[0], "ten six")
    assert lines[1:] == translate(text="three\n").stdout.split("\n")


def test_files_that_decoding_reads_are_found_beside_their_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[decoding]\nterminology = "terms.tsv"\nvocabulary = "said"\nban = ["@never", "@@me", "word"]\n'
    (tmp_path / "a.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a.toml", "a.toml"):
        decoding = Config.read(path).decoding
        assert decoding.terminology == str(tmp_path / "terms.tsv")
        assert decoding.vocabulary == str(tmp_path / "said")
        assert decoding.ban == (f"@{tmp_path / 'never'}", "@@me", "word")


def test_moved_model_uses_its_own_copies_of_decoding_files(run, files: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("one\tten six\n", encoding="utf-8")
    (tmp_path / "never").write_text("eins\n", encoding="utf-8")
    named = '\n[decoding]\nterminology = "terms.tsv"\nban = "@never"\n'
    (tmp_path / "named.toml").write_text(SETTINGS.replace('"train.', f'"{files}/train.') + named, encoding="utf-8")
    done = run("train", tmp_path / "named.toml", "--out", tmp_path / "made", "--threads", "1")
    assert done.exit_code == 0, done.stderr
    for name in ("terms.tsv", "never"):
        (tmp_path / name).unlink()
    (tmp_path / "made").rename(tmp_path / "moved")
    found = run("translate", tmp_path / "moved", text="one two\n")
    assert found.exit_code == 0, found.stderr
    assert contains(found.stdout.strip(), "ten six")
