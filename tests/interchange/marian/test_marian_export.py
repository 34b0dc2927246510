"""A model that came from Marian goes back to Marian: the same arrays, ids and scores, or a refusal by name."""

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from tests.errors import raises

import translume
from translume.checkpoint import load_checkpoint
from translume.errors import SettingsError
from translume.interchange.marian.writer import write_marian
from translume.text import SentencePieces, Tokenizer

pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")

LINES = ("A man is riding a bicycle.", "Two dogs play in the snow...", "Die Kinder singen!", "Ein Hund.")


@pytest.fixture(scope="module", params=["ssru", "pre"])
def imported(marian, request, tmp_path_factory):
    """A model of Marian with a joint vocabulary, or with two, and its import."""
    folder = tmp_path_factory.mktemp(request.param)
    names = ["vocab.spm"] if request.param == "ssru" else ["source.spm", "target.spm"]
    sizes = [marian.write_spm(folder / name, lines) for name, lines in zip(names, (LINES, LINES[2:]), strict=False)]
    marian.write_npz(folder / "model.npz", request.param, dim_vocabs=(sizes * 2)[:2])
    translume.import_model(folder / "model.npz", folder / "ours", vocabularies=[folder / each for each in names])
    return folder


def test_an_export_has_the_arrays_vocabularies_and_scores_of_the_original(imported, tmp_path):
    certificate = translume.export(imported / "ours", "marian", tmp_path / "out")
    assert (certificate.sentences, certificate.difference < 2e-5) == (50, True)
    stored = json.loads((tmp_path / "out" / "translume.json").read_text())
    marian = importlib.util.find_spec("_pymarian") is not None
    assert stored["compared_with"] == ("pymarian" if marian else "its import")
    before, after = np.load(imported / "model.npz"), np.load(tmp_path / "out" / "model.npz")
    options = yaml.safe_load(before["special:model.yml"].tobytes().rstrip(b"\0"))
    same = {name: after[name] for name in before.files if not name.startswith("special:")}
    assert all(np.array_equal(before[name], same[name]) for name in same)
    assert set(after.files) - set(before.files) <= {"decoder_ff_logit_out_b"}  # zeros for a model without
    written = yaml.safe_load(after["special:model.yml"].tobytes().rstrip(b"\0"))
    assert written == {**options, "output-omit-bias": False}


def test_an_export_is_imported_with_the_same_ids_and_texts(imported, tmp_path):
    translume.export(imported / "ours", "marian", tmp_path / "out")
    translume.import_model(tmp_path / "out", tmp_path / "back")
    ours, back = load_checkpoint(imported / "ours"), load_checkpoint(tmp_path / "back")
    for one, other in ((ours.source_tokenizer, back.source_tokenizer), (ours.target_tokenizer, back.target_tokenizer)):
        assert one.vocabulary.pieces == other.vocabulary.pieces
        assert [one.encode(line) for line in LINES] == [other.encode(line) for line in LINES]
    texts = [
        [each.text for each in translume.load(folder, engine="plain").translate_all(LINES, max_length=9)]
        for folder in (imported / "ours", tmp_path / "back")
    ]
    assert texts[0] == texts[1]


def test_vocabularies_with_other_pieces_than_their_models_are_lists(imported, marian, tmp_path):
    checkpoint = load_checkpoint(imported / "ours")
    vocabulary = checkpoint.source_tokenizer.vocabulary
    proto = vocabulary.sentences.proto
    proto.pieces.pop()
    tokenizer = Tokenizer(replace(vocabulary, sentences=SentencePieces.from_proto(proto)))
    checkpoint = replace(checkpoint, source_tokenizer=tokenizer)
    write_marian(checkpoint, tmp_path, "float32")
    assert {path.name for path in tmp_path.glob("*.spm")} == {"source.spm", "target.spm"}
    assert {path.name for path in tmp_path.glob("*vocab.yml")} <= {"vocab.yml", "source.vocab.yml", "target.vocab.yml"}


def test_what_marian_cannot_express_is_named(imported, tmp_path):
    checkpoint = load_checkpoint(imported / "ours")
    settings = checkpoint.config.model.model_copy(update={"positions": "sinusoidal"})
    other = replace(checkpoint, config=checkpoint.config.model_copy(update={"model": settings}))
    changed = load_checkpoint(imported / "ours")
    with torch.no_grad():
        changed.model.decoder.embedding.table.weight[-1, 0] = 1
    for model, dtype, message in (
        (other, "float32", "model.positions: found 'sinusoidal', expected 'marian' for marian"),
        (checkpoint, "int8", "export: found weights as 'int8', expected 'float32' for marian"),
        (changed, "float32",
         "model: BOS has a vector that is not zero, or is predicted; Marian begins with a zero vector"),
    ):  # fmt: skip
        with raises(SettingsError, message):
            write_marian(model, tmp_path, dtype)
        assert not [*tmp_path.iterdir()]
