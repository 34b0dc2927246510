"""Fine-tuning with `train(…, source=…)`: what a run takes from its base model, and what it refuses."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from translume.checkpoint import Manifest, data_of_history, load_checkpoint, read_config, read_history
from translume.config import Config, DataSettings, TrainingSettings
from translume.errors import SettingsError
from translume.training import Finished, Warned, train
from translume.training.fine_tuning import inherit_settings

Make = Callable[..., Config]


@pytest.fixture(scope="module")
def base(toy: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with languages, evaluation and decoding settings, a banned phrase from a file and a cleaning rule."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "banned").write_text("a b c\n", encoding="utf-8")
    config = toy(
        {
            "data": {"source_language": "en", "target_language": "zh", "cleaning": {"max_tokens": 100}},
            "evaluation": {"tokenize": "zh", "metrics": ["chrf"]},
            "decoding": {"strategy": "greedy", "ban": [f"@{folder / 'banned'}"]},
            "tokenizer": {"lowercase": True},
        },
        updates=2,
    )
    list(train(config, folder / "model"))
    return folder / "model"


SIZES = {"width": 12, "feed_forward": 23, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2}


def small(toy: Make, **more: object) -> Config:
    """Return settings that state only the training files and [training]."""
    files = {name: value for name, value in toy().data.stated().items() if value}
    training = {"updates": 2, "warmup_updates": 1, "max_tokens": 211, "precision": "fp32"}
    return Config.build({"data": files, "training": training, **more})


def test_what_the_settings_do_not_state_is_that_of_the_base_model(toy: Make, base: Path, tmp_path: Path) -> None:
    events = list(train(small(toy, decoding={"beam": 3}), tmp_path / "copy", source=base))
    assert not [event for event in events if isinstance(event, Warned)]
    found, held = read_config(tmp_path / "copy"), read_config(base)
    assert (found.data.source_language, found.data.target_language) == ("en", "zh")
    assert found.data.cleaning == held.data.cleaning
    assert (found.model, found.tokenizer, found.evaluation) == (held.model, held.tokenizer, held.evaluation)
    assert found.decoding.model_copy(update={"ban": ()}) == held.decoding.model_copy(update={"ban": (), "beam": 3})
    copied = found.decoding.ban[0].removeprefix("@")
    assert Path(copied).is_relative_to(tmp_path / "copy")
    assert Path(copied).read_text(encoding="utf-8") == "a b c\n"
    assert found.training == small(toy).training


def test_a_stated_default_is_not_replaced(toy: Make, base: Path, tmp_path: Path) -> None:
    config = small(toy, evaluation={"metrics": ["bleu", "chrf"]}, decoding={"strategy": "beam"})
    list(train(config, tmp_path / "copy", source=base))
    found = read_config(tmp_path / "copy")
    assert (found.evaluation.metrics, found.decoding.strategy) == (("bleu", "chrf"), "beam")


def test_the_column_of_documents_is_that_of_the_files() -> None:
    base = Config.build({"data": {"train": ["a.tsv"], "columns": [1, 2], "document_column": 0}})
    found, _ = inherit_settings(Config.build({"data": {"train": ["b.tsv"]}}), base, "base")
    assert (found.data.columns, found.data.document_column) == ((), "")


def test_the_loss_of_ctc_is_that_of_the_base_model_unless_stated() -> None:
    """A model without it has no head for the search's weight of CTC, which is then not inherited."""
    source = {"data": {"source": {"kind": "features"}}}
    base = Config.build({**source, "training": {"ctc_weight": 0.3}})
    base = base.model_copy(update={"decoding": base.decoding.model_copy(update={"ctc_weight": 0.5})})
    found, _ = inherit_settings(Config(), base, "base")
    assert (found.training.ctc_weight, found.decoding.ctc_weight) == (0.3, 0.5)
    found, _ = inherit_settings(Config.build({"training": {"ctc_weight": 0.0}}), base, "base")
    assert (found.training.ctc_weight, found.decoding.ctc_weight) == (0, 0)


def test_another_target_language_does_not_inherit_the_tokenization_of_scores(
    toy: Make, base: Path, tmp_path: Path
) -> None:
    files = {**small(toy).data.stated(), "target_language": "de"}
    config = Config.build({**small(toy).stated(), "data": files})
    list(train(config, tmp_path / "copy", source=base))
    found = read_config(tmp_path / "copy")
    assert (found.evaluation.tokenize, found.evaluation.metrics) == ("auto", ("chrf",))


def test_sizes_that_init_proposes_give_way_to_the_base_model_with_one_line(
    toy: Make, base: Path, tmp_path: Path
) -> None:
    config = small(toy, tokenizer={"kind": "bpe", "size": 1000}, model={"width": 128, "attention_heads": 2})
    events = list(train(config, tmp_path / "copy", source=base))
    assert [event.message for event in events if isinstance(event, Warned)] == [
        f"model and tokenizer are those of {base}; not used: model.width = 128, tokenizer.kind = 'bpe', "
        "tokenizer.size = 1000"
    ]
    assert read_config(tmp_path / "copy").model.width == 12


@pytest.mark.parametrize(
    ("table", "values", "message"),
    [
        (
            "model",
            {"norm": "post"},
            "model.norm: found 'post', but {base} has 'pre'; use that value or leave it out",
        ),
        (
            "model",
            {"head": {"kind": "adaptive", "cutoffs": [8]}},
            "model.head.kind: found 'adaptive', but {base} has 'softmax'; use that value or leave it out",
        ),
    ],
)
def test_another_architecture_is_refused(
    toy: Make, base: Path, tmp_path: Path, table: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        list(train(small(toy, **{table: values}), tmp_path / "copy", source=base))
    assert str(caught.value) == message.format(base=base)
    assert not (tmp_path / "copy").exists()


def test_a_named_tokenizer_must_be_that_of_the_base_model(toy: Make, base: Path, tmp_path: Path) -> None:
    list(train(toy({"tokenizer": {"kind": "character", "size": 300}}, updates=1), tmp_path / "other"))
    other = next((tmp_path / "other").glob("*_settings-*.json"))
    with pytest.raises(SettingsError) as caught:
        list(train(small(toy, tokenizer={"path": str(other)}), tmp_path / "copy", source=base))
    assert str(caught.value) == f"tokenizer.path: {other} is not the tokenizer of {base}; leave this setting out"


def test_the_base_model_may_be_named_as_the_tokenizer(toy: Make, base: Path, tmp_path: Path) -> None:
    named = small(toy, tokenizer={"path": str(base), "target_path": str(base), "shared": False})
    for _ in range(2):  # resumed, too
        *_, last = train(named, tmp_path / "copy", source=base)
        assert isinstance(last, Finished)
    *_, last = train(small(toy, tokenizer={"path": str(base)}, model=SIZES), tmp_path / "new")
    *_, again = train(small(toy, tokenizer={"path": str(base)}, model=SIZES), tmp_path / "new")
    assert isinstance(again, Finished)
    assert again.already


def test_the_run_resumes_with_the_same_settings_file(toy: Make, base: Path, tmp_path: Path) -> None:
    list(train(small(toy), tmp_path / "copy", source=base))
    more = small(toy).change("training.updates=4")
    list(train(more, tmp_path / "copy"))
    found = read_config(tmp_path / "copy")
    assert (found.training.updates, found.data.target_language, found.decoding.strategy) == (4, "zh", "greedy")


def test_the_card_names_the_base_model_and_its_digest(toy: Make, base: Path, tmp_path: Path) -> None:
    list(train(small(toy), tmp_path / "copy", source=base))
    digest = hashlib.sha256(next(base.glob("weights-*")).read_bytes()).hexdigest()
    card = (tmp_path / "copy" / "README.md").read_text(encoding="utf-8")
    assert f"## Base model\n\nFine-tuned from `model`; SHA-256 of its weights: `{digest}`.\n" in card
    assert "## Base model" not in (base / "README.md").read_text(encoding="utf-8")


def test_the_log_keeps_what_went_into_the_base_models(toy: Make, base: Path, tmp_path: Path) -> None:
    list(train(small(toy), tmp_path / "one", source=base))
    list(train(small(toy), tmp_path / "two", source=tmp_path / "one"))
    own, one, two = (data_of_history(read_history(folder)) for folder in (base, tmp_path / "one", tmp_path / "two"))
    assert own["base"] is None
    assert two["base"]["weights_sha256"] == Manifest.read(tmp_path / "one").files["weights.safetensors"].sha256
    assert {name: two["base"][name] for name in one} == one
    assert {name: two["base"]["base"][name] for name in own} == own


def test_settings_know_what_was_stated() -> None:
    config = Config(data=DataSettings(train_source=("a",)), training=TrainingSettings(updates=20_000))
    assert config.stated() == {"data": {"train_source": ("a",)}, "training": {"updates": 20_000}}
    assert config.relative_to(Path("/f")).stated() == {
        "data": {"train_source": ("/f/a",)},
        "training": {"updates": 20_000},
    }
    changed = config.change("model.head.kind=adaptive", "model.head.cutoffs=[8]")
    assert changed.stated()["model"] == {"head": {"kind": "adaptive", "cutoffs": (8,)}}
    assert changed.change("data.source_language=en").stated() == {
        **changed.stated(),
        "data": {"source_language": "en", "train_source": ("a",)},
    }


def test_a_vocabulary_grows_for_new_texts_and_new_tokens_begin_as_means(toy: Make, base: Path, tmp_path: Path) -> None:
    texts = ["zebra ωω"] * 5
    for side in ("source", "target"):
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    files = {f"{part}_{side}": str(tmp_path / side) for part in ("train", "valid") for side in ("source", "target")}
    training = {"updates": 1, "warmup_updates": 1, "max_tokens": 211, "precision": "fp32", "learning_rate": 1e-9}
    values = {"data": files, "training": training, "tokenizer": {"extend": 4}}
    list(train(Config.build(values), tmp_path / "grown", source=base))
    before, after = load_checkpoint(base), load_checkpoint(tmp_path / "grown")
    old, new = before.source_tokenizer, after.source_tokenizer
    assert new.pieces()[: len(old)] == old.pieces()
    assert len(old) < len(new) <= len(old) + 4
    assert old.specials.unk in old.encode("zebra ωω")
    assert new.decode(new.encode("zebra ωω b")) == "zebra ωω b"
    weights, grown = (each.model.encoder.embedding.table.weight for each in (before, after))
    torch.testing.assert_close(grown[: len(old)], weights, atol=1e-6, rtol=0)
    ids = list(old.segment_ids(new.vocabulary.pieces[-1]))
    torch.testing.assert_close(grown[-1], weights[ids].mean(0), atol=1e-6, rtol=0)
    with pytest.raises(
        SettingsError, match=r"^tokenizer.extend: found 4 without a model to adapt; name one with --from"
    ):
        list(train(Config.build({**values, "model": {"width": 8, "attention_heads": 2}}), tmp_path / "alone"))
