"""Corpora of several directions: files, counts, shares, tags and training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from translume import Config, load, train
from translume.config import Direction
from translume.data.corpus import TokenizedCorpus, sampling_weights
from translume.data.plan import BatchPlan
from translume.data.token_cache import prepare
from translume.errors import SettingsError
from translume.training.vocabularies import vocabularies_of

SETTINGS = """
[data]
sampling_temperature = 2
[[data.corpus]]
source_language = "en"
target_language = "de"
train_source = "many.en"
train_target = "many.de"
valid = "valid.tsv"
[[data.corpus]]
source_language = "de"
target_language = "en"
train = "few.tsv"
valid = "valid.tsv"
[tokenizer]
kind = "character"
size = 61
unknown = "token"
[model]
width = 22
feed_forward = 29
encoder_layers = 1
decoder_layers = 1
attention_heads = 11
max_positions = 31
language_tags = "target"
[training]
updates = 3
max_tokens = 150
validate_every = 3
save_every = 1
average_last = 1
schedule = "constant"
metric = "bleu"
[decoding]
beam = 1
max_length = 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 27 pairs from English to German, 3 from German to English, and an empty side in each."""
    place = tmp_path_factory.mktemp("corpora")
    (place / "many.en").write_text("".join(f"a{'b' * (n % 7)} c\n" for n in range(27)) + "\n")
    (place / "many.de").write_text("".join(f"x{'y' * (n % 5)}\n" for n in range(27)) + "z\n")
    (place / "few.tsv").write_text("xy\tab\nxyy\tabb\nx\ta\nz\t\n")
    (place / "valid.tsv").write_text("ab c\txy\nabb c\txyy\n")
    (place / "many.toml").write_text(SETTINGS)
    return place


@pytest.fixture(scope="module")
def corpus(folder: Path) -> TokenizedCorpus:
    config = Config.read(folder / "many.toml")
    source, target = vocabularies_of(config)
    return prepare(
        config.data,
        source,
        target,
        folder / "cache",
        split="train",
        max_positions=(31, 31),
        language_tags=config.model.language_tags,
    )


def test_pairs_are_counted_for_each_direction(corpus: TokenizedCorpus) -> None:
    assert corpus.account.summary().splitlines() == [
        "32 pairs read, 30 used, 2 dropped",
        "  empty: 2",
        "  en→de: 28 pairs read, 27 used, 1 dropped",
        "    empty: 1",
        "  de→en: 4 pairs read, 3 used, 1 dropped",
        "    empty: 1",
    ]
    assert type(corpus.account).from_dict(corpus.account.to_dict()) == corpus.account


def test_the_temperature_flattens_the_shares_of_the_directions(corpus: TokenizedCorpus) -> None:
    # √27 : √3 = 3 : 1, of 30 pairs: 22.5 and 7.5.
    assert corpus.weights == pytest.approx((22.5 / 27, 7.5 / 3))
    plan = BatchPlan(corpus, max_tokens=150, seed=1, epoch=0)
    lines = [line for batch in plan.batches() for line in batch.lines]
    assert sum(line >= 27 for line in lines) == 8  # each pair twice, and half of them, rounded, a third time
    assert sum(line < 27 for line in lines) in (22, 23)  # 22.5, rounded


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    st.floats(1, 100),
)
def test_an_epoch_keeps_its_size_at_any_temperature(counts: list[int], temperature: float) -> None:
    groups = [Direction(source="en", target=str(number)) for number in range(len(counts))]
    weights = sampling_weights(groups, counts, [1.0] * len(counts), temperature)
    reads = np.multiply(counts, weights)
    assert reads.sum() == pytest.approx(sum(counts))
    shares = np.power(np.array(counts, float), 1 / temperature)
    assert reads / reads.sum() == pytest.approx(shares / shares.sum())


def test_corpora_without_pairs_have_no_weight() -> None:
    assert sampling_weights([Direction(source="en", target="de")], [0], [1.0], 5.0) == (0.0,)


def test_batches_begin_with_the_tags_of_their_direction(corpus: TokenizedCorpus) -> None:
    tags = corpus.source_tokenizer.languages
    bos, pad, eos = (getattr(corpus.source_tokenizer.specials, name) for name in ("bos", "pad", "eos"))
    plan = BatchPlan(corpus, max_tokens=150, seed=1, epoch=0)
    for batch in plan.batches():
        assert batch.source.numel() <= 150
        assert batch.target.numel() <= 150
        for row, line in enumerate(batch.lines):
            own, other = ("en", "de") if line < 27 else ("de", "en")
            source, target = corpus.source(line).tolist(), corpus.target(line).tolist()
            assert batch.source[row][batch.source_mask[row]].tolist() == [tags[own], *source, eos]
            assert batch.target[row][batch.target_mask[row]].tolist() == [bos, tags[other], *target]
            assert batch.labels[row][batch.target_mask[row]].tolist() == [pad, *target, eos]
        assert batch.tokens == int(batch.target_mask.sum()) - len(batch)
        assert sum(half.tokens for half in batch.halves()) == batch.tokens if len(batch) > 1 else True


def test_settings_with_corpora_survive_toml(folder: Path) -> None:
    config = Config.read(folder / "many.toml")
    assert Config.parse(config.to_toml()) == config
    assert config.data.corpus[1].train == (str(folder / "few.tsv"),)
    assert config.change("training.updates=9").data == config.data


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'train = "few.tsv"',
            'trian = "few.tsv"',
            "data.corpus.1.trian: no such setting; did you mean 'data.corpus.1.train'?",
        ),
        (
            'language_tags = "target"',
            "",
            "model.language_tags: found 'none' with the target languages de, en; expected 'source' or 'target'",
        ),
        ("sampling_temperature = 2", 'train = "a.tsv"', "data: train is set with [[data.corpus]], expected it there"),
        ('source_language = "de"\n', "", "data.corpus.1.source_language: missing"),
    ],
    ids=["misspelt", "no tags", "both", "no language"],
)
def test_wrong_corpora_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        Config.parse(SETTINGS.replace(old, new, 1))
    assert str(error.value) == f"settings: {message}"


def test_files_of_a_corpus_are_checked_before_training(folder: Path, tmp_path: Path) -> None:
    text = SETTINGS.replace('valid = "valid.tsv"\n', "", 1)
    with pytest.raises(SettingsError) as error:
        next(iter(train(Config.parse(text).relative_to(folder), tmp_path / "m")))
    assert str(error.value) == (
        "data.corpus.0: no validation files, but another corpus has some; expected them in all or none"
    )
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("task", ["classification", "language_model"])
def test_other_tasks_refuse_several_languages(task: str) -> None:
    model = 'encoder_layers = 0\nlanguage_tags = "target"' if task == "language_model" else 'language_tags = "source"'
    head = '[model.head]\nkind = "classify"' if task == "classification" else ""
    with pytest.raises(SettingsError, match=r"^settings: model.language_tags: found 'source|target'"):
        Config.parse(f'[data]\ntask = "{task}"\ntrain = "a.tsv"\n[model]\n{model}\n{head}')


def test_a_run_measures_each_direction_and_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    config = Config.read(folder / "many.toml")
    events = list(train(config, tmp_path / "whole"))
    metrics = next(event.metrics for event in events if hasattr(event, "metrics") and event.metrics)
    assert set(metrics) == {"bleu", "bleu en→de", "bleu de→en"}
    assert metrics["bleu"] == pytest.approx((metrics["bleu en→de"] + metrics["bleu de→en"]) / 2)
    run = train(config, tmp_path / "parts")
    assert any(getattr(event, "update", 0) == 1 for event in run)
    run.close()
    list(train(config, tmp_path / "parts"))
    whole, parts = (load(tmp_path / name, engine="plain") for name in ("whole", "parts"))
    for one, other in zip(whole.checkpoint.model.parameters(), parts.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert whole.directions.describe() == "en→de, de→en"
    assert whole.score("ab c", "xy", to="de", from_="en").log_prob < 0
