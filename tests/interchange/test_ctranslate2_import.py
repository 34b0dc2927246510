"""Folders that CTranslate2's converters wrote give the same log-probabilities and translations here."""

import argparse
import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.errors import raises

import translume
from translume.checkpoint import save_model
from translume.checkpoint.arrays import map_arrays
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.interchange import ctranslate2_reader
from translume.interchange.ctranslate2_binary import Binary, read_binary
from translume.interchange.ctranslate2_reader import read_ctranslate2
from translume.translator import load

from . import test_ctranslate2 as exports
from . import test_families as families
from .conftest import SOURCES, TARGETS, sentencepiece_of

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (extra: export)")
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

WIDTH, HEADS, INNER, LAYERS = 32, 4, 48, 2
CONVERTERS = ctranslate2.converters
SEARCH = {"split": "never", "letterless": "translate"}


def converted(source: Path, folder: Path, *files: str, quantization: str | None = None) -> Path:
    CONVERTERS.TransformersConverter(str(source), copy_files=[*files]).convert(str(folder), quantization=quantization)
    return folder


@pytest.fixture(scope="module")
def marian(tmp_path_factory, opus) -> SimpleNamespace:
    """A random OPUS-MT model, converted."""
    folder = tmp_path_factory.mktemp("marian")
    opus.write(folder / "opus")
    return SimpleNamespace(
        folder=converted(folder / "opus", folder / "float32", "source.spm", "target.spm"), original=folder / "opus"
    )


def opennmt_checkpoint(path: Path, pieces: list[str], *, biased: bool = True, seed: int = 5) -> None:
    """Write random weights under OpenNMT-py's names: pre-norm, sines and cosines in turns, no EOS after a source."""
    draw, state = torch.Generator().manual_seed(seed), {}

    def add(name: str, *shape: int) -> None:
        state[name] = torch.randn(*shape, generator=draw) / shape[-1] ** 0.5

    def linear(name: str, rows: int, columns: int, *, biased: bool = True) -> None:
        add(f"{name}.weight", rows, columns)
        if biased:
            add(f"{name}.bias", rows)

    def norm(name: str) -> None:
        add(f"{name}.weight", WIDTH)
        state[f"{name}.weight"] += 1
        add(f"{name}.bias", WIDTH)

    places = torch.arange(64)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * -(np.log(10_000.0) / WIDTH))
    table = torch.stack([places.sin(), places.cos()], -1).reshape(64, 1, WIDTH)
    for side, layers in (("encoder", "encoder.transformer"), ("decoder", "decoder.transformer_layers")):
        state[f"{side}.embeddings.make_embedding.pe.pe"] = table
        add(f"{side}.embeddings.make_embedding.emb_luts.0.weight", len(pieces), WIDTH)
        norm(f"{side}.layer_norm")
        for layer in range(LAYERS):
            name = f"{layers}.{layer}"
            attentions = ["self_attn"] if side == "encoder" else ["self_attn", "context_attn"]
            norms = ["layer_norm"] if side == "encoder" else ["layer_norm_1", "layer_norm_2"]
            for attention in attentions:
                for part in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                    linear(f"{name}.{attention}.{part}", WIDTH, WIDTH, biased=biased)
            for each in (*norms, "feed_forward.layer_norm"):
                norm(f"{name}.{each}")
            linear(f"{name}.feed_forward.w_1", INNER, WIDTH)
            linear(f"{name}.feed_forward.w_2", WIDTH, INNER)
    head = {"weight": torch.randn(len(pieces), WIDTH, generator=draw) / 3, "bias": torch.zeros(len(pieces))}
    head["bias"][:3] = -1e4  # a trained model never writes these; CTranslate2 may
    head["bias"][3] = 4.0  # EOS
    options = argparse.Namespace(
        encoder_type="transformer", decoder_type="transformer", position_encoding=True, max_relative_positions=0,
        heads=HEADS, enc_layers=LAYERS, dec_layers=LAYERS, pos_ffn_activation_fn="relu",
    )  # fmt: skip
    vocabulary = {"src": pieces, "tgt": pieces}
    torch.save({"vocab": vocabulary, "opt": options, "model": state, "generator": head}, path)


def opennmt_folder(folder: Path, *, quantization: str | None = None, biased: bool = True, seed: int = 5) -> Path:
    """A folder that CTranslate2's converter made of random weights of OpenNMT-py, with its SentencePiece model."""
    model = sentencepiece_of([*SOURCES, *TARGETS], vocab_size=150, normalization_rule_name="identity")
    reader = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = ["<unk>", "<blank>", "<s>", "</s>", *(reader.id_to_piece(id_) for id_ in range(3, len(reader)))]
    folder.parent.mkdir(parents=True, exist_ok=True)
    opennmt_checkpoint(folder.with_suffix(".pt"), pieces, biased=biased, seed=seed)
    converter = CONVERTERS.OpenNMTPyConverter(str(folder.with_suffix(".pt")), unsafe_deserialization=True)
    converter.convert(str(folder), quantization=quantization)
    (folder / "sentencepiece.model").write_bytes(model)
    return folder


@pytest.fixture(scope="module")
def opennmt(tmp_path_factory) -> Path:
    return opennmt_folder(tmp_path_factory.mktemp("opennmt") / "model")


def their_texts(folder: Path, lines, model: str, **options) -> list[str]:
    reader = sentencepiece.SentencePieceProcessor(model_file=str(folder / model))
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    results = translator.translate_batch(reader.encode([*lines], out_type=str), **options)
    return [reader.decode(each.hypotheses[0]).strip() for each in results]


@pytest.mark.parametrize(
    ("quantization", "matrix", "norm"),
    [
        (None, "float32", "float32"),
        ("int8", "int8", "float32"),
        ("int16", "float32", "float32"),
        ("float16", "float16", "float16"),
        ("bfloat16", "uint16", "uint16"),
        ("int8_float16", "int8", "float16"),
    ],
)
def test_every_format_of_weights_is_read_and_kept(marian, tmp_path, quantization, matrix, norm) -> None:
    """But for integers of 16 bits, which a model folder does not have."""
    folder = converted(marian.original, tmp_path / "ct2", "source.spm", "target.spm", quantization=quantization)
    found = translume.import_model(folder, tmp_path / "ours")
    assert found.certificate.difference < 1e-5
    assert not found.notes
    assert load(tmp_path / "ours").checkpoint.config.model.head.tie == "all"
    stored = map_arrays(weights_of(tmp_path / "ours"))
    assert stored["decoder.layers.1.feed_forward.inner.weight"].dtype == matrix
    assert stored["encoder.layers.1.around_attention.norm.weight"].dtype == norm
    if quantization == "int8":  # rounding the weights again gives the same integers
        translume.export(tmp_path / "ours", "translume", tmp_path / "again", dtype="int8")
        again = map_arrays(weights_of(tmp_path / "again"))
        assert all(np.array_equal(stored[name], again[name]) for name in stored if stored[name].dtype == "int8")


def weights_of(folder: Path) -> Path:
    return next(folder.glob("weights-*.safetensors"))


def test_matrices_in_int8_are_not_copied(tmp_path) -> None:
    model = read_ctranslate2(opennmt_folder(tmp_path / "int8", quantization="int8"))
    matrices = [each for each in map(model.weights.__getitem__, model.weights) if each.dtype == "int8"]
    assert len(matrices) == 3 + 2 * 4 + 2 * 7
    assert not any(each.flags.owndata for each in matrices)


@pytest.mark.parametrize(
    ("values", "quantization"),
    [({}, None), ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, "int8")],
)
def test_a_t5_is_read(tmp_path, monkeypatch, values, quantization) -> None:
    original = tmp_path / "t5"
    original.mkdir()
    (original / "spiece.model").write_bytes(
        sentencepiece_of([*SOURCES, *TARGETS], pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    )
    tokenizer = transformers.T5Tokenizer.from_pretrained(original)
    tokenizer.save_pretrained(original)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        **values,
    )  # fmt: skip
    torch.manual_seed(3)
    transformers.T5ForConditionalGeneration(config).save_pretrained(original)
    folder = converted(original, tmp_path / "ct2", "spiece.model", quantization=quantization)
    assert translume.import_model(folder, tmp_path / "ours").certificate.difference < 1e-5
    if quantization:
        mixed, name = read_binary(folder / "model.bin"), "decoder/layer_0/ffn/linear_0_noact/weight"
        whole = {**mixed.variables, name: mixed.weight(name, 48, 32)}
        monkeypatch.setattr(ctranslate2_reader, "read_binary", lambda path: replace(mixed, variables=whole))
        with raises(SettingsError, f"{folder}/model.bin: {name}: found float32, expected int8, as linear_0"):
            read_ctranslate2(folder)
    translume.import_model(original, tmp_path / "direct")
    ours, direct = load(tmp_path / "ours"), load(tmp_path / "direct")
    assert ours.translate(SOURCES[0], max_length=9).text == direct.translate(SOURCES[0], max_length=9, **_two()).text


def _two() -> dict[str, object]:
    return {"beam": 2, "stop": "first", "length_penalty": 1.0}


@pytest.mark.parametrize("name", ["bart", "nllb"])
def test_tags_and_tokenizers_are_those_of_transformers(opus, tmp_path, name) -> None:
    original = tmp_path / "theirs"
    original.mkdir()
    if name == "bart":
        tokenizer, architecture, to = families.bart_tokenizer(opus), "BartForConditionalGeneration", {}
    else:
        tokenizer, architecture = families.nllb_tokenizer(opus, original), "M2M100ForConditionalGeneration"
        to = {"from_": "deu_Latn", "to": "fra_Latn"}
    _, direct = families.imported(architecture, tokenizer, original, 0)
    stated = json.loads((original / "config.json").read_text())
    (original / "config.json").write_text(json.dumps(stated | {"normalize_before": name != "bart"}))
    found = translume.import_model(converted(original, tmp_path / "ct2", "tokenizer.json"), tmp_path / "ours")
    assert found.certificate.difference < 1e-5
    ours = load(tmp_path / "ours")
    assert ours.checkpoint.source_tokenizer.languages == direct.checkpoint.source_tokenizer.languages
    assert ours.checkpoint.config.model.positions == ("learned" if name == "bart" else "fairseq")
    options = {**_two(), "max_length": 9, "split": "never", **to}
    for line in families.HOSTILE:
        assert ours.checkpoint.source_tokenizer.encode(line) == direct.checkpoint.source_tokenizer.encode(line)
    for line in SOURCES:
        assert ours.translate(line, **options).text == direct.translate(line, **options).text


def test_a_model_of_opennmt_reads_no_eos(opennmt, tmp_path) -> None:
    found = translume.import_model(opennmt, tmp_path / "ours")
    assert found.certificate.difference < 1e-5
    ours = load(tmp_path / "ours")
    assert ours.checkpoint.source_tokenizer.specials.source_end == ()
    texts = [each.text for each in ours.translate_all([*SOURCES, *TARGETS], max_length=32, **SEARCH)]
    assert texts == their_texts(opennmt, [*SOURCES, *TARGETS], "sentencepiece.model", max_decoding_length=32)
    plain = load(tmp_path / "ours", engine="plain")
    assert plain.translate(SOURCES[0], max_length=32, **SEARCH).text == texts[0]
    trace = translume.trace(ours, SOURCES[0])
    assert [token.text for token in trace.source_tokens][-1] != "</s>"
    scored = ours.score(SOURCES[0], TARGETS[0])
    assert scored.log_prob == pytest.approx(trace_of(ours, TARGETS[0]), abs=1e-4)


def trace_of(model, target: str) -> float:
    return translume.trace(model, SOURCES[0], target=target).log_p


def test_maps_without_biases_get_zeros(tmp_path) -> None:
    found = translume.import_model(opennmt_folder(tmp_path / "ct2", biased=False), tmp_path / "ours")
    assert found.certificate.difference < 1e-5


def test_an_import_goes_back(opennmt, tmp_path) -> None:
    translume.import_model(opennmt, tmp_path / "ours")
    assert translume.export(tmp_path / "ours", "ctranslate2", tmp_path / "back").difference < 1e-5
    assert json.loads((tmp_path / "back" / "config.json").read_text())["add_source_eos"] is False
    assert translume.import_model(tmp_path / "back", tmp_path / "again").certificate.difference < 1e-5
    again, ours = load(tmp_path / "again").checkpoint, load(tmp_path / "ours").checkpoint
    assert again.source_tokenizer.digest == ours.source_tokenizer.digest
    assert again.config.model == ours.config.model


@pytest.mark.parametrize("name", ["t5", "rotary", "two-vocabularies", "bytes", "embedding-norm", "swiglu"])
def test_exports_of_our_own_models_come_back(tmp_path, name) -> None:
    model = exports.checkpoint_of(**exports.VARIANTS[name])
    save_model(tmp_path / "ours", model)
    translume.export(tmp_path / "ours", "ctranslate2", tmp_path / "ct2")
    found = translume.import_model(tmp_path / "ct2", tmp_path / "back")
    assert found.certificate.difference < 1e-5
    back = load(tmp_path / "back")
    assert back.checkpoint.source_tokenizer.digest == model.source_tokenizer.digest
    assert back.translate("a man", max_length=9, **_two()).text == (
        load(tmp_path / "ours").translate("a man", max_length=9, **_two()).text
    )


def test_old_files_and_vocabularies_are_read(opennmt, tmp_path) -> None:
    """Files of version 5 and lists of lines, as CTranslate2 2.x wrote them."""
    folder = tmp_path / "old"
    shutil.copytree(opennmt, folder)
    content = bytearray((folder / "model.bin").read_bytes())
    content[:4] = struct.pack("<I", 5)
    (folder / "model.bin").write_bytes(content)
    (folder / "config.json").unlink()
    pieces = json.loads((folder / "shared_vocabulary.json").read_text())
    (folder / "shared_vocabulary.json").unlink()
    (folder / "source_vocabulary.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    (folder / "target_vocabulary.txt").write_text("".join(f"{piece}\r\n" for piece in pieces), encoding="utf-8")
    assert translume.import_model(folder, tmp_path / "ours").certificate.difference < 1e-5
    assert read_ctranslate2(folder).tokens == (pieces, pieces)


def damaged(folder: Path, copy: Path, name: str, change) -> Path:
    shutil.copytree(folder, copy)
    path = copy / name
    path.write_bytes(change(path.read_bytes()))
    return copy


def with_number(content: bytes, name: bytes, value: bytes) -> bytes:
    """Overwrite the first bytes of a variable's data."""
    at = content.index(struct.pack("<H", len(name) + 1) + name) + 3 + len(name)
    rank = content[at]
    at += 1 + 4 * rank + 5
    return content[:at] + value + content[at + len(value) :]


NORM = b"encoder/layer_norm/beta"
BAD = {
    "truncated": ("model.bin", lambda all_: all_[:-9], DataError, "damaged, or not a model of CTranslate2"),
    "empty": ("model.bin", lambda all_: b"", DataError, "damaged: it is empty"),
    "other": ("model.bin", lambda all_: b"PK\3\4" + all_, DataError, "damaged, or not a model of CTranslate2"),
    "newer": (
        "model.bin", lambda all_: b"\7" + all_[1:], SettingsError, "binary version: found 7, expected 4 to 6",
    ),
    "nan": (
        "model.bin", lambda all_: with_number(all_, NORM, struct.pack("<f", np.nan)), ModelFolderError,
        "encoder/layer_norm/beta: found a number that is not finite",
    ),
    "heads": (
        "model.bin", lambda all_: with_number(all_, b"encoder/num_heads", struct.pack("<h", 7)), SettingsError,
        "decoder/num_heads: found 4, expected 7, that of the encoder",
    ),
    "shape": (
        "model.bin",
        lambda all_: all_.replace(b"gamma\0\1" + struct.pack("<I", 32), b"gamma\0\1" + struct.pack("<I", 2**31), 1),
        DataError, "damaged, or not a model of CTranslate2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_line(opennmt, tmp_path, name) -> None:
    file, change, kind, message = BAD[name]
    folder = damaged(opennmt, tmp_path / "bad", file, change)
    with raises(kind, f"{folder / file}: {message}"):
        translume.import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ([3.0, 3.0, 3.0], "found 3, expected 2 numbers"),
        ([3.0, 0.0], "found 0, expected other numbers"),
        ([3.0, np.nan], "found a number that is not finite"),
        ([3.0, 1e-37], "found a number that is not finite"),
    ],
)
def test_damaged_scales_are_refused(tmp_path, scale, message) -> None:
    variables = {"w": np.ones((2, 3), np.int8), "w_scale": np.array(scale, np.float32)}
    binary = Binary(place=tmp_path, version=6, layout="TransformerSpec", revision=7, variables=variables)
    with raises(ModelFolderError, f"{tmp_path}: w_scale: {message}"):
        binary.weight("w", 2, 3)


def test_a_vocabulary_of_another_size_is_refused(opennmt, tmp_path) -> None:
    def without_last(content: bytes) -> bytes:
        return json.dumps(json.loads(content)[:-1]).encode()

    folder = damaged(opennmt, tmp_path / "bad", "shared_vocabulary.json", without_last)
    size = len(json.loads((opennmt / "shared_vocabulary.json").read_text()))
    with raises(
        ModelFolderError,
        f"{folder}/model.bin: encoder/embeddings_0/weight is [{size}, 32], expected [{size - 1}, 32]",
    ):
        translume.import_model(folder, tmp_path / "ours")


def test_a_folder_without_a_tokenizer_is_refused(opennmt, tmp_path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(opennmt, folder)
    (folder / "sentencepiece.model").rename(tmp_path / "both.model")
    with raises(
        ModelFolderError,
        f"{folder}: SentencePiece models: found none, expected one or two beside model.bin, or with --vocabs",
    ):
        translume.import_model(folder, tmp_path / "ours")
    models = [tmp_path / "both.model"] * 2
    assert translume.import_model(folder, tmp_path / "ours", vocabularies=models).certificate.difference < 1e-5


def test_other_layouts_are_refused_by_name(opennmt, tmp_path) -> None:
    folder = damaged(
        opennmt, tmp_path / "bad", "model.bin", lambda all_: all_.replace(b"TransformerSpec", b"WhisperSpecXXXX", 1)
    )
    with raises(SettingsError, f"{folder}/model.bin: found 'WhisperSpecXXXX 7', expected 'TransformerSpec' up to 7"):
        translume.import_model(folder, tmp_path / "ours")


def test_an_unread_variable_is_refused(opennmt, tmp_path) -> None:
    folder = damaged(
        opennmt, tmp_path / "bad", "model.bin", lambda all_: all_.replace(b"decoder/alibi\0", b"decoder/alibj\0", 1)
    )
    with raises(
        SettingsError,
        f"{folder}/model.bin: decoder/alibj: found it, expected a part of a Transformer that Translume has",
    ):
        translume.import_model(folder, tmp_path / "ours")


def test_variables_are_mapped_not_copied(opennmt) -> None:
    binary = read_binary(opennmt / "model.bin")
    assert not any(array.flags.owndata for array in binary.variables.values())
