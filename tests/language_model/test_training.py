"""A language model is trained on blocks of documents, none of which reads another document."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from translume.checkpoint import Checkpoint, build_language_model, load_any, read_config
from translume.cli import main
from translume.config import Config, HeadKind, ModelSettings
from translume.data.corpus import TokenizedCorpus
from translume.data.pairs import read_pairs
from translume.data.plan import BatchPlan
from translume.data.token_cache import prepare
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.tasks import find_task
from translume.text import Tokenizer
from translume.training import Finished, Started, Validated, train
from translume.training.vocabularies import vocabularies_of
from translume.translator import Generator

from .conftest import Make


def corpus_of(config: Config, folder: Path) -> TokenizedCorpus:
    source, target = vocabularies_of(config)
    return prepare(config.data, source, target, folder / "cache", split="train", max_positions=(19, 19))


def test_it_learns_what_follows_and_every_document_is_counted(make: Make, tmp_path: Path) -> None:
    """A perfect model of these texts has 0.8 to 0.9 nats per token; one that knows only frequencies has 2.2."""
    events = list(train(make(updates=120, validate_every=60), tmp_path / "model", device="cpu", threads=1))
    started = next(event for event in events if isinstance(event, Started))
    assert started.training.summary() == "132 documents read, 131 used, 1 dropped\n  empty: 1"
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.nll is not None
    assert last.nll < 1.2
    assert "translume generate model" in (tmp_path / "model" / "README.md").read_text()


def test_an_interrupted_run_ends_with_the_same_weights(make: Make, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    list(train(make(updates=40), whole, device="cpu", threads=1))
    list(train(make(updates=20), parts, device="cpu", threads=1))
    list(train(make(updates=40), parts, device="cpu", threads=1))
    one, other = (load_any(folder).model.state_dict() for folder in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(name.startswith(("decoder.", "head.")) for name in one)


def test_every_token_of_every_document_is_in_one_block_of_each_epoch(make: Make, tmp_path: Path) -> None:
    corpus = corpus_of(make(), tmp_path)
    whole = [tuple(corpus.target(number).tolist()) for number in range(corpus.pairs)]
    cuts = set()
    for epoch in (0, 1, 2):
        plan = BatchPlan(corpus, max_tokens=223, seed=5, epoch=epoch)
        blocks: dict[int, list[tuple[int, ...]]] = {}
        for number in range(plan.corpus.pairs):
            (owner,) = plan.corpus.numbers(np.array([number]))
            blocks.setdefault(owner, []).append(tuple(plan.corpus.target(number).tolist()))
        assert [sum(blocks[number], ()) for number in range(corpus.pairs)] == whole
        assert max(len(block) for each in blocks.values() for block in each) == 11
        assert sum(batch.tokens for batch in plan.batches()) == sum(map(len, whole))
        cuts.add(tuple(len(each[0]) for each in blocks.values()))
    assert len(cuts) == 3  # long documents are cut elsewhere in each epoch


def test_the_first_input_of_a_block_is_the_token_before_it(make: Make, tmp_path: Path) -> None:
    corpus = corpus_of(make(), tmp_path)
    specials = corpus.target_tokenizer.specials
    texts = [corpus.target(number).tolist() for number in range(corpus.pairs)]
    begins = continues = 0
    for batch in BatchPlan(corpus, max_tokens=223, seed=1, epoch=1).batches():
        for row, number in enumerate(batch.lines):
            length = int(batch.target_mask[row].sum())
            inputs, labels = batch.target[row, :length].tolist(), batch.labels[row, :length].tolist()
            text = [specials.bos, *texts[number]]
            places = [at for at in range(len(text)) if text[at : at + length + 1] == [*inputs, labels[-1]]]
            assert places
            assert inputs[1:] == labels[:-1]
            begins += inputs[0] == specials.bos
            continues += inputs[0] != specials.bos
    assert begins == corpus.pairs
    assert continues > 50


def test_documents_do_not_read_each_other(make: Make, tmp_path: Path) -> None:
    """The log-probabilities of a block in a batch are those of the block alone, for every position encoding."""
    corpus = corpus_of(make(), tmp_path)
    batch = next(iter(BatchPlan(corpus, max_tokens=223, seed=1, epoch=0).batches()))
    assert len(batch) > 5
    for positions in ("sinusoidal", "learned", "rotary", "relative", "none"):
        for norm in ("pre", "post"):
            model = network(positions=positions, norm=norm)
            together = model.score(batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
            for row in range(len(batch)):
                part = slice(row, row + 1)
                alone = model.score(
                    batch.source[part], batch.source_mask[part], batch.target[part], batch.labels[part],
                    batch.target_mask[part],
                )  # fmt: skip
                assert torch.allclose(together[part], alone, atol=1e-5), (positions, norm)


def network(**settings: Any) -> torch.nn.Module:
    """Return an untrained language model over 29 tokens whose weights differ from their initial values."""
    chosen = ModelSettings.model_validate(
        {
            **{"width": 12, "feed_forward": 23, "encoder_layers": 0, "decoder_layers": 2, "attention_heads": 2},
            **{"dropout": 0.0, "max_positions": 19, **settings},
        }
    )
    torch.manual_seed(3)
    return build_language_model(chosen, 29, 29).eval()


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "relative"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mixing", ["attention", "ssru"])
def test_cached_steps_are_whole_passes(positions: str, norm: str, mixing: str) -> None:
    model: Any = network(positions=positions, norm=norm, decoder_mixing=mixing)
    torch.manual_seed(1)
    ids = torch.randint(3, 29, (3, 9))
    labels = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    source, mask = torch.full((3, 1), 2), torch.ones(3, 1, dtype=torch.bool)
    whole = model.score(source, mask, ids, labels, torch.ones_like(ids, dtype=torch.bool))
    with torch.no_grad():
        state = model.start(source, mask)
        for length in (1, 4, 5, 9):  # some steps read several tokens
            belief, state = model.step(ids[:, :length], state)
            found = belief.log_prob_of(labels[:, length - 1 : length])[:, 0]
            assert torch.allclose(found, whole[:, length - 1], atol=1e-5)
            state = state.select(torch.tensor([0, 1, 2]))


@pytest.mark.parametrize(
    "head",
    [{"kind": kind} for kind in sorted(set(HeadKind.kinds()) - {"classify", "copy", "shortlist"})]
    + [{"kind": "adaptive", "tie": "all"}],
)
def test_every_head_over_tokens_can_be_trained(head: dict[str, str], make: Make, tmp_path: Path) -> None:
    config = make({"model": {"head": head}}, updates=2, validate_every=2)
    events = list(train(config, tmp_path / "model", device="cpu", threads=1))
    assert isinstance(events[-1], Finished)
    model = load_any(tmp_path / "model").model
    assert sum(1 for name, _ in model.named_parameters() if name.startswith("encoder")) == 0


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40), block=st.integers(2, 13), epoch=st.integers(0, 3))
def test_blocks_are_a_partition(lengths: list[int], block: int, epoch: int) -> None:
    """Whatever the lengths: the blocks of a document follow each other, and only its first and last are shorter."""
    count = len(lengths)
    starts = np.cumsum(lengths) - np.array(lengths)
    tokenizer: Any = object()
    corpus = TokenizedCorpus(
        pairs=count, account=None, digest="", source_lengths=np.zeros(count, np.int32),  # type: ignore[arg-type]
        target_lengths=np.array(lengths, np.int32), origins=(), first=(0, count), source_tokenizer=tokenizer,
        target_tokenizer=tokenizer, limits=(None, None), task=find_task("language_model"), starts=starts[::32],
        tokens=np.arange(sum(lengths)), line_numbers=np.arange(count, dtype=np.uint32), block_length=block,
    )  # fmt: skip
    found = corpus.of_epoch(7, epoch)
    assert np.concatenate([found.target(number) for number in range(found.pairs)]).tolist() == list(range(sum(lengths)))
    for number in range(count):
        own = [len(found.target(at)) for at in np.flatnonzero(found.documents == number).tolist()]
        assert sum(own) == lengths[number]
        assert all(each == block for each in own[1:-1])
        assert max(own) <= block
    assert corpus.longest == min(block, max(lengths))


TEXT = "\n\nOne two.\nThree.\n   \nFour.\n\n\nFive six."


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ("line", [("", 1), ("", 2), ("One two.", 3), ("Three.", 4), ("   ", 5), ("Four.", 6), ("", 7), ("", 8),
                  ("Five six.", 9)]),
        ("blank_line", [("One two.\nThree.", 3), ("Four.", 6), ("Five six.", 9)]),
        ("file", [(TEXT, 1)]),
    ],
)  # fmt: skip
def test_where_documents_end(documents: str, found: list[tuple[str, int]], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    data = Config.build(
        {
            "data": {"task": "language_model", "documents": documents, "train": str(tmp_path / "a.txt")},
            "model": {"encoder_layers": 0},
        }
    ).data
    assert [(pair.target, pair.line) for pair in read_pairs(data, "train")] == found
    assert {pair.source for pair in read_pairs(data, "train")} == {""}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a.jsonl", '{"text": "one\\ntwo"}\n{"text": "three", "id": 5}\n'),
        ("a.csv", 'id,text\n4,"one\ntwo"\n5,three\n'),
    ],
)
def test_documents_of_tables_are_their_column_text(tmp_path: Path, name: str, rows: str) -> None:
    (tmp_path / name).write_text(rows)
    data = Config.build(
        {"data": {"task": "language_model", "train": str(tmp_path / name)}, "model": {"encoder_layers": 0}}
    ).data
    assert [pair.target for pair in read_pairs(data, "train")] == ["one\ntwo", "three"]


def test_statistics_count_documents_and_no_sources(make: Make, tmp_path: Path) -> None:
    (tmp_path / "lm.toml").write_text(make().to_toml())
    done = CliRunner().invoke(main, ["data", "stats", str(tmp_path / "lm.toml")])
    assert done.exit_code == 0, done.stderr
    train_split, target, *_ = done.stdout.splitlines()
    assert train_split == "train: 131 documents"
    assert "tokens per document: mean " in target
    assert "source" not in done.stdout
    (tmp_path / "lm.toml").write_text(make({"data": {"documents": "file"}}).to_toml())
    done = CliRunner().invoke(main, ["data", "prepare", str(tmp_path / "lm.toml"), "--out", str(tmp_path / "model")])
    counted = "1 documents read, 1 used, 0 dropped\n"
    assert done.stdout == f"train: {counted}valid: {counted}", "although both are alike"


def test_validation_documents_are_held_out_of_the_training_documents(make: Make, tmp_path: Path) -> None:
    events = list(train(make({"data": {"valid": []}}, updates=2), tmp_path / "model", device="cpu", threads=1))
    started = next(event for event in events if isinstance(event, Started))
    assert started.training.summary().startswith("132 documents read, 129 used, 2 held out for validation, 1 dropped")


def test_one_document_cannot_be_held_out(make: Make, tmp_path: Path) -> None:
    config = make({"data": {"valid": [], "documents": "file"}}, updates=2)
    with pytest.raises(DataError) as caught:
        list(train(config, tmp_path / "model", device="cpu", threads=1))
    assert str(caught.value) == (
        "data: none of 1 training documents could be held out for validation; expected more documents, or data.valid"
    )


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"model": {"encoder_layers": 3}}, "model.encoder_layers: found 3, must be 0 for a language model"),
        (
            {"model": {"head": {"kind": "copy"}}},
            "model.head.kind: 'copy' reads a source, which a language model lacks",
        ),
        ({"model": {"segments": 2}}, "model.segments: found 2, must be 0 for a language model"),
        (
            {"data": {"cleaning": {"max_ratio": 2.0}}},
            "data.cleaning.max_ratio: found 2.0, must be 0.0 for a language model",
        ),
        ({"data": {"block_length": 20}}, "data.block_length: found 20, expected at most model.max_positions, 19"),
        (
            {"model": {"head": {"kind": "classify"}}},
            "data.task = 'language_model' with model.head.kind = 'classify', expected data.task = 'classification'",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(make: Make, others: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make(others)
    assert str(caught.value) == f"settings: {message}"


def test_files_that_do_not_fit_are_refused(make: Make, files: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n \n")
    train_file = str(files / "train.txt")
    for others, message in (
        ({"data": {"train": str(tmp_path / "empty.txt")}}, f"{tmp_path}/empty.txt: empty file, expected text"),
        ({"data": {"train": []}}, "data: no training files; expected data.train (text files)"),
        (
            {"data": {"train_source": train_file, "train_target": train_file}},
            "data.train_source: a language model reads documents; expected data.train",
        ),
        (
            {"data": {"columns": [0, 1]}},
            "data.columns: a language model reads whole lines, or the key 'text' of JSONL files",
        ),
        (
            {"tokenizer": {"kind": "bpe", "size": 300, "dropout": 0.1}},
            "tokenizer.dropout: found 0.1, must be 0 for a language model",
        ),
    ):
        with pytest.raises((DataError, SettingsError)) as caught:
            list(train(make(others, updates=1), tmp_path / "model", device="cpu", threads=1))
        assert str(caught.value) == message


def test_other_commands_refuse_a_language_model(folder: Path) -> None:
    from translume.translator import Translator

    with pytest.raises(ModelFolderError) as caught:
        Translator.load(folder)
    assert (
        str(caught.value)
        == f"{folder}: is a language model, expected a translator; its commands are generate, evaluate and inspect"
    )
    assert read_config(folder).data.task == "language_model"
    assert isinstance(load_any(folder), Checkpoint)


def test_training_can_choose_by_perplexity(make: Make, tmp_path: Path) -> None:
    config = make(updates=20, metric="bits_per_byte")
    events = list(train(config, tmp_path / "model", device="cpu", threads=1))
    (validated,) = [event for event in events if isinstance(event, Validated)]
    generator = Generator.load(tmp_path / "model")
    lines = Path(config.data.valid[0]).read_text().splitlines()
    assert validated.metrics["bits_per_byte"] == pytest.approx(generator.perplexity(lines).bits_per_byte, rel=1e-6)


def test_the_nll_of_validation_is_that_of_windows_without_overlap(folder: Path, generator: Generator) -> None:
    config = read_config(folder)
    lines = Path(config.data.valid[0]).read_text().splitlines()
    found = generator.perplexity(lines, stride=generator.context)
    assert f"validation nll = {found.nats / found.tokens:.4f} nats per token" in (folder / "README.md").read_text()
    assert found.empty == 1
    tokenizer: Tokenizer = generator.tokenizer
    assert found.tokens == sum(len(tokenizer.encode(line)) + 1 for line in lines if line)
    assert found.bytes == found.characters == sum(map(len, lines))
    assert found.words == sum(len(line.split()) for line in lines)
