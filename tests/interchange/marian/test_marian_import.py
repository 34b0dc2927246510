"""Marian models are imported with Marian's scores and ids, or refused by the name of an option or an array."""

import importlib.util
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.errors import raises

import translume
from translume.checkpoint import build_model, load_checkpoint, save_model
from translume.cli import main
from translume.config import Config, ModelSettings
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.interchange.marian.files import read_binary, read_npz
from translume.interchange.marian.options import decoding_values, read_architecture
from translume.interchange.marian.reader import fill, find_files, read_marian
from translume.training import Validated

pytest.importorskip("yaml", reason="pyyaml is not installed (extra: export)")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
needs_marian = pytest.mark.skipif(importlib.util.find_spec("_pymarian") is None, reason="pymarian is not installed")

READ, WRITTEN = [7, 2, 18, 11, 5, 5, 0], [3, 20, 9, 17, 0]
RECORDED = {
    "post": [-5.32105, -3.30925, -3.99367, -3.10479, -4.16372],
    "ssru": [-6.29247, -5.36512, -1.05690, -1.96575, -9.78648],
    "pre": [-4.33976, -2.65777, -3.98959, -3.47748, -3.70111],
    "pre-ssru": [-6.09326, -5.13821, -6.26865, -5.39018, -3.86560],
    "narrow": [-4.24354, -4.72185, -3.44774, -4.60752, -1.59503],
}
"""`pymarian score --word-scores` of pymarian 1.12.42, to five decimal places."""
LINES = (
    "A man is riding a bicycle.", "Two dogs play in the snow...", "Die Kinder singen, und 1.234 Leute hören zu!",
    "Everyone knows the café.",
)  # fmt: skip


@pytest.mark.parametrize("variant", RECORDED)
def test_log_probabilities_are_those_that_marian_prints(marian, tmp_path, variant):
    file = read_npz(marian.write_npz(tmp_path / "model.npz", variant))
    shape = read_architecture(file.place, file.options)
    model = build_model(ModelSettings(**shape.values), shape.source + 1, shape.target + 1).eval()
    fill(model, shape, file)
    read, labels = torch.tensor([READ]), torch.tensor([WRITTEN])
    given = torch.tensor([[shape.target, *WRITTEN[:-1]]])
    found = model.score(read, torch.ones_like(read) > 0, given, labels, torch.ones_like(labels) > 0)
    assert found[0].tolist() == pytest.approx(RECORDED[variant], abs=1e-5)


@needs_marian
@pytest.mark.parametrize("variant", ["ssru", "pre"])
def test_an_import_is_compared_with_marian_itself(marian, tmp_path, variant):
    names = ["joint.spm"] * 2 if variant == "ssru" else ["source.spm", "target.spm"]
    sizes = [marian.write_spm(tmp_path / name, LINES if name == "joint.spm" else LINES[:3]) for name in names]
    model = marian.write_npz(tmp_path / "model.npz", variant, dim_vocabs=sizes)
    done = CliRunner().invoke(
        main, ["import", str(model), str(tmp_path / "out"), "--json", "--vocabs", *(str(tmp_path / n) for n in names)]
    )
    assert done.exit_code == 0, done.output
    certificate = json.loads(done.output)["certificate"]
    assert certificate["sentences"] == 50
    assert certificate["difference"] < 2e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert "imported from model.npz of Marian; " in card


@pytest.fixture
def folder(marian, tmp_path):
    """A folder like those of OPUS-MT: lists of pieces, and SentencePiece models beside them."""
    marian.write_spm(tmp_path / "source.spm", LINES[:2])
    marian.write_spm(tmp_path / "target.spm", LINES[2:])
    peers = [sentencepiece.SentencePieceProcessor(str(tmp_path / f"{side}.spm")) for side in ("source", "target")]
    pieces = dict.fromkeys(peer.id_to_piece(number) for peer in peers for number in range(len(peer)))
    listed = "".join(f"{json.dumps(piece)}: {number}\n" for number, piece in enumerate(pieces))
    (tmp_path / "opus.vocab.yml").write_text(listed, encoding="utf-8")
    marian.write_npz(tmp_path / "opus.npz", "ssru", dim_vocabs=[len(pieces)] * 2)
    (tmp_path / "decoder.yml").write_text(
        "models:\n  - /elsewhere/opus.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\nbeam-size: 6\n"
        "normalize: 0.6\nword-penalty: 0.5\nmax-length-factor: 2\nshortlist: [lex.s2t.gz, 50, 50]\nallow-unk: true\n"
    )
    return tmp_path


def test_a_folder_of_opus_mt_brings_its_vocabularies_and_decoder_settings(folder, monkeypatch):
    monkeypatch.setattr("translume.interchange.marian.writer.find_spec", lambda _: None)
    found = translume.import_model(folder, folder / "out")
    assert found.certificate is None
    place = folder / "decoder.yml"
    assert found.notes == (
        f"{place}: word-penalty: 0.5 has no setting here and is left out",
        f"{place}: shortlist: ['lex.s2t.gz', 50, 50] has no setting here and is left out",
        "not compared with Marian: pymarian is not installed; pip install pymarian",
    )
    saved = load_checkpoint(folder / "out")
    decoding = saved.config.decoding
    assert (decoding.beam, decoding.length_penalty, decoding.max_length_ratio, decoding.max_length_extra) == (
        6, 0.6, 2.0, 2,
    )  # fmt: skip
    assert saved.config.model.decoder_mixing == "ssru"
    pieces = saved.source_tokenizer.pieces()
    for side, tokenizer in (("source", saved.source_tokenizer), ("target", saved.target_tokenizer)):
        peer = sentencepiece.SentencePieceProcessor(str(folder / f"{side}.spm"))
        for line in LINES:
            words = [piece if piece in pieces else "<unk>" for piece in peer.encode(line, out_type=str)]
            assert [pieces[each] for each in tokenizer.encode(line)] == words
    fast = translume.load(folder / "out").translate_all(list(LINES), max_length=7)
    assert len(list(fast)) == len(LINES)


def test_a_spm_vocabulary_has_the_ids_of_sentencepiece(marian, tmp_path):
    path = tmp_path / "vocab.spm"
    size = marian.write_spm(path, LINES)
    model = marian.write_npz(tmp_path / "model.npz", "ssru", dim_vocabs=[size, size])
    found = read_marian(tmp_path).checkpoint
    peer = sentencepiece.SentencePieceProcessor(str(path))
    assert found.source_tokenizer is found.target_tokenizer
    specials = found.source_tokenizer.specials
    assert (specials.eos, specials.unk, specials.bos, specials.pad) == (0, 1, size, size)
    for line in (*LINES, "  naïve ﬁne\u00a0x 我", ""):
        assert found.source_tokenizer.encode(line) == peer.encode(line)
    assert find_files(model).vocabularies == (path, path)
    assert not found.model.decoder.embedding.table.weight[size].any()  # BOS, which is never predicted
    assert found.model.head.bias[size] == -100


def test_an_import_is_fine_tuned_and_inspected(marian, tmp_path):
    sizes = [marian.write_spm(tmp_path / "joint.spm", LINES)] * 2
    model = marian.write_npz(tmp_path / "model.npz", "pre-ssru", dim_vocabs=sizes)
    save_model(tmp_path / "out", read_marian(model, [tmp_path / "joint.spm"] * 2).checkpoint)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    lines = str(tmp_path / "lines")
    config = Config.build(
        {
            "data": {"train_source": lines, "train_target": lines, "valid_source": lines, "valid_target": lines},
            "training": {"updates": 4, "validate_every": 1, "warmup_updates": 1, "learning_rate": 1e-3},
        }
    )
    events = [*translume.train(config, tmp_path / "tuned", source=tmp_path / "out")]
    losses = [event.nll for event in events if isinstance(event, Validated)]
    assert losses[-1] < losses[0]
    tuned = translume.load(tmp_path / "tuned", engine="plain")
    found = translume.trace(tuned, LINES[0], LINES[1])
    assert found.log_p == pytest.approx(tuned.score(LINES[0], LINES[1]).log_prob, abs=1e-3)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("type", "s2s", "type: found 's2s', expected 'transformer'"),
        ("transformer-decoder-autoreg", "average-attention",
         "transformer-decoder-autoreg: found 'average-attention', expected 'self-attention', or 'rnn' with dec-cell "
         "'ssru'"),
        ("transformer-decoder-autoreg", "rnn", "dec-cell: found 'gru', expected 'ssru'"),
        ("transformer-ffn-depth", 3, "transformer-ffn-depth: found 3, expected 2"),
        ("transformer-tied-layers", [1, 1], "transformer-tied-layers: found [1, 1], expected []"),
        ("lemma-dim-emb", 7, "lemma-dim-emb: found 7, expected 0"),
        ("transformer-postprocess-emb", "nd", "transformer-postprocess-emb: found 'nd', expected 'd'"),
        ("transformer-attention-mask", "alibi", "transformer-attention-mask: found 'alibi', expected 'default'"),
        ("transformer-ffn-activation", "rely",
         "transformer-ffn-activation: found 'rely'; did you mean 'relu'?"),
        ("transformer-postprocess", "da",
         "found transformer-preprocess '', transformer-postprocess 'da', transformer-postprocess-top '', expected '', "
         "'dan' and '', or 'n', 'da' and 'n'"),
        ("dim-emb", "7", "dim-emb: found '7', expected an integer"),
        ("enc-depth", None, "enc-depth: found nothing, expected an integer"),
        ("dim-vocabs", [7, 7, 7], "dim-vocabs: found [7, 7, 7], expected two sizes, of source and target"),
    ],
)  # fmt: skip
def test_an_option_that_we_do_not_have_is_refused_by_name(marian, option, value, text):
    with raises(SettingsError, f"model.npz: {text}"):
        read_architecture("model.npz", {**marian.options, option: value})


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"decoder_l2_ffn_b2": None}, "no decoder_l2_ffn_b2, expected it by the options of the model"),
        ({"Wpos": np.zeros((5, 14))}, "holds Wpos, which a model of its options does not have"),
        ({"encoder_l1_self_Wk": np.zeros((14, 13))},
         "encoder_l1_self_Wk is [14, 13], which does not fit the options of the model"),
        ({"encoder_l1_self_Wo": np.zeros((13, 14))},
         "encoder_l1_self_Wo is [13, 14], which does not fit the options of the model"),
        ({"decoder_Wemb": np.zeros((5, 14))}, "decoder_Wemb is [5, 14], which does not fit the options of the model"),
        ({"encoder_l1_self_bk": np.zeros(14)}, "encoder_l1_self_bk is [14], expected rows and columns"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_the_options_are_refused_by_name(marian, tmp_path, arrays, text):
    file = read_npz(marian.write_npz(tmp_path / "model.npz", arrays=arrays))
    shape = read_architecture(file.place, file.options)
    model = build_model(ModelSettings(**shape.values), shape.source + 1, shape.target + 1)
    with raises(ModelFolderError, f"{tmp_path / 'model.npz'}: {text}"):
        fill(model, shape, file)


class Malicious:
    def __reduce__(self):
        return pytest.fail, ("a pickle was executed",)


def test_a_file_that_is_no_model_of_marian_is_refused_in_one_line_and_no_pickle_is_read(marian, tmp_path):
    path, out = tmp_path / "model.npz", tmp_path / "out"
    whole = marian.write_npz(path).read_bytes()
    for content, text in (
        (b"", "damaged, or not weights of Marian"), (b"text", "damaged, or not weights of Marian"),
        (whole[:999], "damaged, or not weights of Marian"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(DataError, match=text):
            read_npz(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ModelFolderError, match=r"no special:model.yml, expected the options of the model"):
        read_npz(path)
    marian.write_npz(path, arrays={"decoder_Wemb": np.array([Malicious()], dtype=object)})
    with pytest.raises(DataError, match="decoder_Wemb is damaged"):
        read_npz(path).read("decoder_Wemb")
    place = np.frombuffer(b"a: [", np.int8)
    np.savez(path, **{"special:model.yml": place})
    with pytest.raises(DataError, match=r"special:model.yml: not YAML: "):
        read_npz(path)
    done = CliRunner().invoke(main, ["import", str(path), str(out)])
    assert done.exit_code == 1
    assert done.stderr == f"Error: {tmp_path}: found no vocabularies, expected them with --vocabs SOURCE TARGET\n"
    assert not out.exists()


def test_vocabularies_must_have_the_sizes_of_the_model_and_the_special_tokens_of_marian(marian, tmp_path):
    path = marian.write_npz(tmp_path / "model.npz", "ssru")
    size = marian.write_spm(tmp_path / "vocab.spm", LINES)
    with raises(SettingsError, f"{path}: dim-vocabs: found 23 for the source, expected {size} by its vocabulary"):
        read_marian(path)
    listed = marian.write_list(tmp_path / "list.yml", 23)
    with pytest.raises(SettingsError, match="found a list of pieces, expected the SentencePiece model that splits"):
        read_marian(path, [listed, listed])
    listed.write_text("a: 1\n")
    (tmp_path / "vocab.spm").rename(tmp_path / "source.spm")
    with pytest.raises(DataError, match="expected a list of pieces, each with its id, 0, 1, 2, …"):
        read_marian(path, [listed, listed])
    listed.write_text("a: 0\n")
    with pytest.raises(DataError, match=r"list.yml: lacks </s>, which every vocabulary of Marian has"):
        read_marian(path, [listed, listed])


def binary_of(arrays, kinds):
    """A .bin of Marian. kinds: for names, the type and the multiplier of quantised weights."""
    headers, data = b"", b""
    for name, array in arrays.items():
        kind, factor = kinds.get(name, (0x101 if name.startswith("special") else 0x404, 0.0))
        content = array.tobytes()
        if factor:
            rows = array if "Wemb" in name else array.T  # embeddings are read row by row, weights column by column
            content = np.round(rows * factor).astype(np.int8).tobytes() + np.float32(factor).tobytes()
        content += bytes(-len(content) % 256)
        headers += np.array([len(name) + 1, kind, array.ndim, len(content)], np.uint64).tobytes()
        data += content
    names = b"".join(name.encode() + b"\0" for name in arrays)
    shapes = b"".join(np.array(array.shape, np.int32).tobytes() for array in arrays.values())
    start = np.array([1, len(arrays)], np.uint64).tobytes()
    return start + headers + names + shapes + np.array([3], np.uint64).tobytes() + bytes(3) + data


def test_a_bin_of_bergamot_is_read_and_its_integers_are_scaled_back(marian, tmp_path):
    size = marian.write_spm(tmp_path / "vocab.spm", LINES)
    plain = marian.write_npz(tmp_path / "model.npz", "ssru", dim_vocabs=[size, size])
    with np.load(plain) as archive:
        arrays = dict(archive)
    path = tmp_path / "model.bin"
    kinds = {"Wemb": (0x4101, 150.0), "decoder_l1_ffn_W1": (0x4101, 170.0), "decoder_l2_rnn_Wf": (0x10001, 190.0)}
    path.write_bytes(whole := binary_of(arrays, kinds))
    found = read_binary(path)
    assert found.quantised
    assert found.options == read_npz(plain).options
    for name in read_npz(plain).names - {"special:model.yml"}:
        step = 1 / kinds[name][1] if name in kinds else 0.0
        assert np.abs(found.read(name) - arrays[name]).max() <= 0.5001 * step
    plain.unlink()
    assert translume.import_model(tmp_path, tmp_path / "out").notes == (
        "not compared with Marian: it rounds hidden states too if the weights are integers",
    )
    for end in (0, 9, 99, 2000, len(whole) - 300):
        path.write_bytes(whole[:end])
        with raises(DataError, f"{path}: damaged, or not weights of Marian"):
            read_binary(path)
    path.write_bytes(binary_of(arrays, {"Wemb": (0x1801, 150.0)}))
    message = (
        f"{path}: Wemb: found weights of type 0x1801, packed for one processor, expected float32 or intgemm8; import "
        "the .npz that the file was converted from"
    )
    with raises(SettingsError, message):
        read_binary(path)


def test_decoder_options_become_settings_or_notes():
    assert decoding_values("decoder.yml", {"beam-size": 1, "normalize": True, "allow-unk": True, "quiet": True}) == (
        {"strategy": "greedy", "length_penalty": 1.0}, [],
    )  # fmt: skip
    with raises(SettingsError, "decoder.yml: normalize: found 'x', expected a number"):
        decoding_values("decoder.yml", {"normalize": "x"})
