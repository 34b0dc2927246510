"""Imports from transformers reproduce the model, or are refused by name and leave no files."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tests.errors import raises

import translume
from translume.checkpoint import load_checkpoint, save_model
from translume.cli import main
from translume.config import DecodingSettings, SoftmaxSettings, TokenizerSettings
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.interchange.huggingface.reader import FAMILIES
from translume.text import train_tokenizer
from translume.translator import load

from .conftest import random_checkpoint

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

TEXTS = [
    "A man is riding a bicycle.", "Ein Mann fährt Fahrrad, 1,234 mal!", "我很饿。 hello世界 <s> </s>",
    "Two dogs play in the snow.", "naïve café ﬁne\u00a0x",
]  # fmt: skip
PLAIN = {"normalization_rule_name": "identity"}
FREE = DecodingSettings(strategy="greedy", max_length=17, max_length_ratio=99.0)


def checkpoint_of(tokenizer=None, **changes):
    tokenizer = tokenizer or TokenizerSettings(size=401)
    decoding = DecodingSettings(strategy="beam", beam=3, length_penalty=0.7)
    return random_checkpoint(train_tokenizer(tokenizer, TEXTS), decoding=decoding, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"positions": "learned"},
        {"norm": "post", "activation": "swish", "head": SoftmaxSettings(tie="target")},
        {"norm": "post", "activation": "gelu", "scale_embeddings": False,
         "head": SoftmaxSettings(bias=False, tie="none")},
    ],
    ids=["pegasus", "learned", "marian-target", "marian-none"],
)  # fmt: skip
def test_an_export_is_imported_bit_for_bit(tmp_path, changes):
    before = checkpoint_of(**changes)
    save_model(tmp_path / "model", before)
    translume.export(tmp_path / "model", "huggingface", tmp_path / "out")
    found = translume.import_model(tmp_path / "out", tmp_path / "back")
    after = load_checkpoint(tmp_path / "back")
    assert found.certificate.difference < 1e-4
    assert not found.notes
    assert after.config.model == before.config.model
    assert after.source_tokenizer.pieces() == before.source_tokenizer.pieces()
    assert after.source_tokenizer.encode_all(TEXTS) == before.source_tokenizer.encode_all(TEXTS)
    weights = after.model.state_dict()
    assert list(weights) == list(before.model.state_dict())
    for name, value in before.model.state_dict().items():
        assert torch.equal(weights[name], value), name
    decoding = after.config.decoding
    assert (decoding.strategy, decoding.beam, decoding.length_penalty) == ("beam", 3, 0.7)


@pytest.mark.parametrize(
    "settings",
    [
        TokenizerSettings(size=401, lowercase=True, normalization="nfkc"),
        TokenizerSettings(size=97, kind="unigram", unknown="token", whitespace="keep"),
        TokenizerSettings(size=97, unknown="token", normalization="none"),
    ],
    ids=["lower-case", "unigram", "unknown-tokens"],
)
def test_tokenizers_of_exports_are_imported(tmp_path, settings):
    before = checkpoint_of(settings, encoder_layers=1, decoder_layers=1)
    save_model(tmp_path / "model", before)
    translume.export(tmp_path / "model", "huggingface", tmp_path / "out")
    translume.import_model(tmp_path / "out", tmp_path / "back")
    after = load_checkpoint(tmp_path / "back").source_tokenizer
    assert after.pieces() == before.source_tokenizer.pieces()
    assert after.encode_all(TEXTS) == before.source_tokenizer.encode_all(TEXTS)


@pytest.mark.parametrize(
    ("separate", "changes"),
    [(False, {}), (True, {"activation_function": "relu", "scale_embedding": False})],
    ids=["one-vocabulary", "two-vocabularies"],
)
def test_a_marian_folder_translates_as_in_transformers(opus, tmp_path, separate, changes):
    source = opus.write(tmp_path / "opus", separate=separate, tokenizer=PLAIN, **changes)
    found = translume.import_model(source, tmp_path / "out")
    assert found.certificate.tokens > 500
    assert found.certificate.difference < 1e-4
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    ours = load(tmp_path / "out", device="cpu")
    assert (ours.checkpoint.source_tokenizer is ours.checkpoint.target_tokenizer) is False
    assert ours.checkpoint.config.decoding.beam == 3
    assert ours.checkpoint.config.decoding.max_length == 52
    for text in ("A man reads.", "Two dogs play, and 1,234 sing!", ">>deu<< Everyone knows the café.", "q"):
        given = tokenizer(text, return_tensors="pt")
        written = theirs.generate(**given, num_beams=1, do_sample=False, max_length=18, forced_eos_token_id=None)
        (wanted,) = ours.translate(text, settings=FREE).hypotheses
        assert written[0].tolist()[1:] == list(wanted.ids)
        assert (
            tokenizer.decode(written[0], skip_special_tokens=True).split() == wanted.text.replace("\ufffd", "").split()
        )


def test_marian_s_own_sinusoids_give_another_model(opus, tmp_path):
    source = opus.write(tmp_path / "opus", tokenizer=PLAIN)
    translume.import_model(source, tmp_path / "hf")
    found = translume.import_model(source, tmp_path / "marian", positions="marian")
    assert found.certificate.difference < 1e-4
    tables = [load_checkpoint(tmp_path / name).model.encoder.embedding.positions.table for name in ("hf", "marian")]
    width = tables[0].size(1)
    # Marian: 10000 ** -(i / (D/2 - 1)) (its transformer.h), so that the last wavelength is 10000 * 2 pi.
    speed = 10_000 ** -(torch.arange(width // 2, dtype=torch.float64) / (width // 2 - 1))
    angles = torch.arange(len(tables[1]), dtype=torch.float64)[:, None] * speed
    torch.testing.assert_close(tables[1].double(), torch.cat([angles.sin(), angles.cos()], 1), rtol=0, atol=1e-6)
    assert float((tables[0] - tables[1]).abs().max()) > 0.1


def test_exports_and_imports_use_the_threads_option(monkeypatch):
    threads = []

    def noted(*arguments, **options):
        threads.append(torch.get_num_threads())
        raise SettingsError("noted")

    monkeypatch.setattr("translume.interchange.export.export", noted)
    monkeypatch.setattr("translume.interchange.importing.import_model", noted)
    before = torch.get_num_threads()
    try:
        for verb, places in (("export", ["m", "huggingface", "out"]), ("import", ["m", "out"])):
            for words, wanted in (([], before), (["--threads", "3"], 3), (["--threads", "1"], 1)):
                torch.set_num_threads(before)
                CliRunner().invoke(main, [verb, *places, *words])
                assert threads.pop() == wanted
    finally:
        torch.set_num_threads(before)


def change(folder, **values):
    path = folder / "config.json"
    merged = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in merged.items() if value != "absent"}))


def refused(folder, out, kind):
    with pytest.raises(kind) as error:
        translume.import_model(folder, out)
    assert [path.name for path in out.parent.iterdir()] == [folder.name]
    return str(error.value)


@pytest.fixture(scope="module")
def original(opus, tmp_path_factory):
    return opus.write(tmp_path_factory.mktemp("original") / "opus", tokenizer=PLAIN)


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "opus"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["MarianModel"]}, "architectures: found 'MarianModel'; did you mean 'MarianMTModel'?"),
        ({"architectures": ["GPT2LMHeadModel"]},
         "architectures: found 'GPT2LMHeadModel', a language model without an encoder, expected one with an encoder "
         f"and a decoder: {', '.join(FAMILIES)}"),
        ({"auto_map": {"AutoModel": "modeling.Model"}},
         "auto_map: the model needs Python code of its repository, which Translume never executes"),
        ({"architectures": ["BertForMaskedLM"]},
         "architectures: found 'BertForMaskedLM', an encoder without a decoder, expected one with an encoder and "
         f"a decoder: {', '.join(FAMILIES)}"),
        ({"model_type": "prophetnet"},
         "model_type: found 'prophetnet', which is left out: its decoder predicts several tokens at once; "
         f"known: {', '.join(family.model_type for family in FAMILIES.values())}"),
        ({"model_type": "pix2struct"},
         "model_type: found 'pix2struct', which is left out: it reads patches of images of any shape; "
         f"known: {', '.join(family.model_type for family in FAMILIES.values())}"),
        ({"architectures": "absent", "model_type": "absent"},
         f"architectures: found None; known: {', '.join(FAMILIES)}"),
        ({"static_position_embeddings": False},
         "static_position_embeddings: found false, expected true for MarianMTModel"),
        ({"do_blenderbot_90_layernorm": True},
         "do_blenderbot_90_layernorm: found true, expected false for MarianMTModel"),
        ({"normalize_embedding": True}, "normalize_embedding: found true, expected false for MarianMTModel"),
        ({"normalize_before": True}, "normalize_before: found true, expected false for MarianMTModel"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm: found true, expected false for MarianMTModel"),
        (
            {"decoder_ffn_dim": 31},
            "decoder_ffn_dim: found 31, expected 29, that of encoder_ffn_dim; here both are alike",
        ),
        ({"decoder_attention_heads": 2},
         "decoder_attention_heads: found 2, expected 17, that of encoder_attention_heads; here both are alike"),
        ({"activation_function": "gelu_new"}, "activation_function: found 'gelu_new'; did you mean 'gelu'?"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: found false with share_encoder_decoder_embeddings true, "
         "expected true, or both false"),
        ({"d_model": "absent"}, "d_model: found nothing, expected an integer"),
        ({"d_model": 34.5}, "d_model: found 34.5, expected an integer"),
        ({"eos_token_id": ["a"]}, 'eos_token_id: found ["a"], expected an integer or a list of them'),
        ({"scale_embedding": "yes"}, 'scale_embedding: found "yes", expected true or false'),
        ({"encoder_attention_heads": 5, "decoder_attention_heads": 5},
         "model: width 34 is not divisible by attention_heads 5"),
    ],
)  # fmt: skip
def test_unsupported_settings_are_refused_by_name(folder, tmp_path, values, message):
    change(folder, **values)
    assert refused(folder, tmp_path / "out", SettingsError) == f"{folder / 'config.json'}: {message}"


def test_ids_beyond_the_vocabulary_are_refused(folder, tmp_path):
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    change(folder, pad_token_id=size)
    assert refused(folder, tmp_path / "out", SettingsError) == (
        f"{folder / 'config.json'}: pad_token_id: found {size}, expected an id of the vocabulary, 0 to {size - 1}"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("config.json", "{path}: no such file, expected one as transformers saves it"),
        (
            "model.safetensors",
            "{path}: no such file, expected the weights as transformers saves them: model.safetensors or "
            "pytorch_model.bin, or one of them in shards with its .index.json",
        ),
        ("target.spm", "{path}: no such file, expected one as MarianTokenizer saves it"),
        ("vocab.json", "{path}: no such file, expected one as MarianTokenizer saves it"),
        ("source.spm", "{folder}: no tokenizer, expected source.spm, target.spm and vocab.json of Marian, "
         "or a tokenizer.json"),
    ],
)  # fmt: skip
def test_a_missing_file_is_named(folder, tmp_path, name, message):
    (folder / name).unlink()
    wanted = message.format(path=folder / name, folder=folder)
    assert refused(folder, tmp_path / "out", ModelFolderError) == wanted


@pytest.fixture(scope="module")
def pegasus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pegasus")
    save_model(folder / "model", checkpoint_of())
    translume.export(folder / "model", "huggingface", folder / "exported")
    return folder / "exported"


@pytest.fixture
def exported(pegasus, tmp_path):
    """A copy of an export of a pre-norm model with a learned tokenizer."""
    return Path(shutil.copytree(pegasus, tmp_path / "exported"))


def test_a_folder_unreadable_by_transformers_is_a_one_line_error(exported, tmp_path):
    path = exported / "tokenizer_config.json"
    for text, message in (
        ("", f"{path}: not JSON: Expecting value: line 1 column 1 (char 0)"),
        ('{"a": "', f"{path}: not JSON: Unterminated string starting at: line 1 column 7 (char 6)"),
        ('{"tokenizer_class": 3}',
         f"{exported}: transformers cannot read it (AttributeError: 'int' object has no attribute 'removesuffix'), "
         "expected a folder that it loads, tokenizer_config.json included"),
    ):  # fmt: skip
        path.write_text(text)
        assert refused(exported, tmp_path / "out", TranslumeError) == message


@pytest.mark.parametrize("form", ["bin", "shards"])
def test_pytorch_files_and_shards_are_imported(folder, tmp_path, form):
    whole = folder / "model.safetensors"
    state = load_file(whole)
    whole.unlink()
    if form == "bin":  # in half precision
        torch.save({name: value.half() for name, value in state.items()}, folder / "pytorch_model.bin")
    else:
        transformers.MarianMTModel(transformers.MarianConfig.from_pretrained(folder)).save_pretrained(
            folder, state_dict=state, max_shard_size="20KB"
        )
        assert (folder / "model.safetensors.index.json").exists()
    assert translume.import_model(folder, tmp_path / "out").certificate.difference < 1e-4


def test_a_bad_config_is_a_one_line_error(folder, tmp_path):
    for text, reason in (
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "found list, expected a JSON object"),
    ):
        (folder / "config.json").write_text(text)
        assert refused(folder, tmp_path / "out", DataError) == f"{folder / 'config.json'}: {reason}"


def weights(folder, edit):
    path = folder / "model.safetensors"
    state = load_file(path)
    edit(state)
    save_file(state, path, metadata={"format": "pt"})
    return path


FC1, KEYS = "model.encoder.layers.0.fc1.weight", "model.decoder.layers.2.encoder_attn.k_proj.bias"
NORM = "model.encoder.layernorm_embedding.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: state.update({FC1: state[FC1][:5].clone()}),
         f"{FC1} is [5, 34], expected [29, 34] by config.json"),
        (lambda state: state.pop(KEYS),
         f"{KEYS}: no such weights, expected them for decoder.layers.2.cross_attention.key_value.bias"),
        (lambda state: state.update({NORM: torch.zeros(34)}),
         f"holds {NORM}, which a MarianMTModel of config.json does not have"),
        (lambda state: state.update({"lm_head.weight": state["model.shared.weight"] + 1.0}),
         "lm_head.weight: differs from model.shared.weight, with which config.json ties it"),
    ],
    ids=["shape", "missing", "unknown", "not-tied"],
)  # fmt: skip
def test_weights_that_do_not_fit_are_named(folder, tmp_path, edit, message):
    path = weights(folder, edit)
    assert refused(folder, tmp_path / "out", ModelFolderError) == f"{path}: {message}"


def test_damaged_weights_are_a_one_line_error(folder, tmp_path):
    (folder / "model.safetensors").write_bytes(b"no")
    message = refused(folder, tmp_path / "out", ModelFolderError)
    assert message.startswith(f"{folder / 'model.safetensors'}: damaged: ")
    assert "\n" not in message


def test_a_model_with_a_nan_is_not_imported(folder, tmp_path):
    def damage(state):
        state["model.decoder.layers.0.fc1.bias"][0] = float("nan")

    weights(folder, damage)
    assert refused(folder, tmp_path / "out", TranslumeError) == (
        "certificate: found log-probabilities nan here and nan in the other toolkit for one token, expected finite "
        "numbers in both"
    )


def test_a_model_that_differs_leaves_no_folder(folder, tmp_path, monkeypatch):
    from translume.interchange.huggingface.bart import Marian

    def turned(family, state, settings):
        found = right(family, state, settings)
        found["encoder.layers.0.feed_forward.inner.bias"] += 1.0
        return found

    right = Marian.weights_from
    monkeypatch.setattr(Marian, "weights_from", turned)
    message = refused(folder, tmp_path / "out", TranslumeError)
    assert message.startswith(f"{folder}: transformers differs by ")
    assert message.endswith(" nats a token, expected at most 0.001")


def test_a_tokenizer_that_differs_leaves_no_folder(folder, tmp_path, monkeypatch):
    from translume.text.imported import SentenceIds

    monkeypatch.setattr(SentenceIds, "encode", lambda self, text: [7])
    assert ": transformers reads " in refused(folder, tmp_path / "out", TranslumeError)


def test_search_settings_that_are_left_out_are_noted(folder, tmp_path):
    path = folder / "generation_config.json"
    pad = json.loads(path.read_text())["pad_token_id"]
    values = {"no_repeat_ngram_size": 3, "bad_words_ids": [[pad], [5, 7]], "early_stopping": True, "num_beams": 1}
    values |= {"min_length": 9, "repetition_penalty": 1.3}
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    found = translume.import_model(folder, tmp_path / "out")
    assert found.notes == (
        f"{path}: repetition_penalty: 1.3 has no setting here that divides logits and is left out",
        f"{path}: forced_eos_token_id: 0 has no setting here and is left out",
        f"{path}: bad_words_ids: [[5, 7]] have no setting here and are left out",
    )
    decoding = load_checkpoint(tmp_path / "out").config.decoding
    assert (decoding.strategy, decoding.stop) == ("greedy", "first")
    assert (decoding.no_repeat_ngram, decoding.min_length) == (3, 8)  # without the start mark


def test_a_tokenizer_json_that_the_library_cannot_run_is_refused(exported, tmp_path):
    path = exported / "tokenizer.json"
    document = json.loads(path.read_text())
    document["normalizer"]["normalizers"].append({"type": "StripAccents"})  # the library panics on some texts
    path.write_text(json.dumps(document))
    assert refused(exported, tmp_path / "out", SettingsError) == (
        f"{exported}: tokenizer: the library cannot read it: index out of bounds: the len is 4 but the index is 4"
    )
    path.write_text('{"model": {"type": "WordLevel", "vocab": {}}}')
    assert refused(exported, tmp_path / "out", TranslumeError) == (
        f"{exported}: transformers cannot read it (KeyError: 'added_tokens'), "
        "expected a folder that it loads, tokenizer_config.json included"
    )


def test_a_tokenizer_json_that_was_changed_is_run_as_it_is(exported, tmp_path):
    path = exported / "tokenizer.json"
    document = json.loads(path.read_text())
    document["normalizer"]["normalizers"].insert(0, {"type": "Nmt"})
    path.write_text(json.dumps(document))
    translume.import_model(exported, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").source_tokenizer.settings.kind == "library"


def test_pegasus_that_is_not_tied_is_refused(exported, tmp_path):
    change(exported, tie_word_embeddings=False)
    assert refused(exported, tmp_path / "out", SettingsError) == (
        f"{exported / 'config.json'}: tie_word_embeddings: found false, expected true for "
        "PegasusForConditionalGeneration"
    )
    change(exported, tie_word_embeddings=True)
    message = "--positions marian: found PegasusForConditionalGeneration, expected MarianMTModel, which Marian trains"
    with raises(SettingsError, message):
        translume.import_model(exported, tmp_path / "out", positions="marian")


def test_an_existing_target_or_missing_source_is_refused(folder, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("kept")
    with raises(TranslumeError, f"{out}: already exists, expected a new or empty folder"):
        translume.import_model(folder, out)
    assert (out / "mine").read_text() == "kept"
    with pytest.raises(ModelFolderError) as error:
        translume.import_model(tmp_path / "none", tmp_path / "new")
    text = "no such folder, expected one as transformers saves it, or a .npz of Marian"
    assert str(error.value) == f"{tmp_path / 'none'}: {text}"
    with raises(SettingsError, "positions: found 'marain'; did you mean 'marian'?"):
        translume.import_model(folder, tmp_path / "new", positions="marain")


def test_the_command_line_prints_the_certificate(folder, tmp_path):
    done = CliRunner().invoke(main, ["import", str(folder), str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert values["certificate"]["sentences"] == 50
    assert [note.split(": ")[1] for note in values["notes"]] == ["forced_eos_token_id"]
    done = CliRunner().invoke(main, ["import", str(folder), str(tmp_path / "other"), "--positions", "marian"])
    assert done.stdout.startswith(f"{tmp_path / 'other'}: ")
    assert "random sentences differ by at most" in done.stdout
    (path,) = (tmp_path / "other").glob("import-*.json")
    stored, card = json.loads(path.read_text()), (tmp_path / "other" / "README.md").read_text()
    assert stored["source"] == "opus"
    assert f"differ by at most {stored['difference']:.2g} nats" in card
    assert "# other\n" in card
    assert "updates" not in card
    done = CliRunner().invoke(main, ["import", str(tmp_path), str(tmp_path / "third")])
    assert done.exit_code == 1
    assert done.stderr == f"Error: {tmp_path / 'config.json'}: no such file, expected one as transformers saves it\n"


def test_a_badly_conditioned_model_is_compared_in_double_precision(opus, tmp_path):
    """Logits of thousands differ by more than the tolerance in single precision alone."""
    folder = opus.write(tmp_path / "theirs", tokenizer={"normalization_rule_name": "identity"})
    model = transformers.MarianMTModel.from_pretrained(folder)
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(3e4)
    model.save_pretrained(folder)
    found = translume.import_model(folder, tmp_path / "out")
    assert found.certificate.difference < 1e-8
    assert re.fullmatch(
        f"compared in double precision: in single, {re.escape(str(folder))}: "
        "transformers differs by [0-9.]+ nats a token, expected at most 0.001",
        found.notes[-1],
    )


def test_a_model_that_differs_in_double_precision_too_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("translume.interchange.certificate.TOLERANCE", 0.0)
    with pytest.raises(
        TranslumeError, match=r": transformers differs by [0-9.e-]+ nats a token, expected at most 0\.0$"
    ):
        translume.import_model(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
