"""Checkpoints of fairseq, OpenNMT-py, EOLE, JoeyNMT and Sockeye are imported with their scores and ids, or refused."""

import os
import zipfile
from pathlib import Path

import pytest
import torch
from tests.errors import raises
from tests.interchange.toolkits import files
from tests.programs import program

import translume
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.split_words import SplitWords

pytest.importorskip("yaml", reason="pyyaml is not installed (extra: export)")
RECORDED = {
    "fairseq post": [-2.05186, -1.58639, -3.57742, -2.32329, -3.82561],
    "fairseq pre": [-1.50275, -1.38145, -4.53152, -3.56961, -3.67271],
    "fairseq adaptive": [-2.69369, -3.33456, -3.89989, -3.78204, -2.24371],
    "joeynmt pre": [-1.59781, -1.32437, -5.40217, -1.75307, -4.86552],
    "joeynmt post": [-3.45839, -3.3095, -1.57279, -2.26417, -2.00217],
    "sockeye pre": [-1.36048, -1.86946, -6.79556, -2.33093, -1.83764],
    "sockeye ssru": [-3.53055, -1.67783, -3.54049, -2.39203, -2.50636],
    "opennmt sinusoidal": [-2.57632, -2.0526, -1.90006, -5.83633, -1.77294],
    "opennmt rotary": [-2.06932, -1.90157, -2.36564, -4.5892, -1.59705],
    "eole sinusoidal": [-1.55871, -1.49188, -3.1277, -4.5825, -2.07607],
    "eole rotary": [-1.52578, -1.54238, -1.75586, -5.67936, -1.37992],
}
"""Log-probabilities of TARGET and EOS after SOURCE that fairseq 0.12.2, JoeyNMT 2.3.0, Sockeye 3.1.34, OpenNMT-py 3.5.1
and EOLE 0.6.4 computed of the files that files.py writes, to five decimal places; their tokenizers cut the texts."""


def written(folder: Path, name: str) -> Path:
    writer, variant = files.WRITERS[name]
    return writer(folder, variant)


@pytest.mark.parametrize("name", RECORDED)
def test_log_probabilities_are_those_of_the_toolkit(tmp_path, name):
    (tmp_path / "theirs").mkdir()
    imported = translume.import_model(written(tmp_path / "theirs", name), tmp_path / "model")
    translator = translume.load(tmp_path / "model", device="cpu", dtype="fp32")
    found = translator.score(files.SOURCE, files.TARGET)
    assert list(found.token_log_probs) == pytest.approx(RECORDED[name], abs=2e-5)
    assert found.tokens == ("cd@@", "b", "ab", "d", "</s>")
    source = translator.checkpoint.source_tokenizer
    assert source.encode(files.SOURCE) == [4, 9, 8, 7, source.specials.unk]
    assert source.specials.ends_source == (name.split()[0] not in ("opennmt", "eole"))
    assert "which is not run here" in imported.notes[-1]


def test_a_folder_is_recognised_by_its_content(tmp_path):
    ratios = {"fairseq post": 0, "joeynmt pre": 0, "sockeye pre": 0, "opennmt sinusoidal": 1.25, "eole rotary": 2}
    for name, ratio in ratios.items():
        folder = tmp_path / name
        folder.mkdir()
        written(folder, name)
        note = translume.import_model(folder, tmp_path / f"model {name}").notes[-1]
        assert name.split()[0] in note.lower()
        assert translume.load(tmp_path / f"model {name}").checkpoint.config.decoding.max_length_ratio == ratio


@pytest.mark.parametrize("folder", os.environ.get("TRANSLUME_CHECKPOINTS", "").split(os.pathsep))
def test_trained_checkpoints_score_and_translate_as_in_their_toolkit(folder):
    if not folder:
        pytest.skip("TRANSLUME_CHECKPOINTS names no folders with a checkpoint and its reference.json")
    result = program("benchmarks/toolkits.py").compare(Path(folder))
    assert result["lines of another length"] == 0
    assert result["difference"] <= 1e-4


def split(words: SplitWords) -> Tokenizer:
    return Tokenizer(Vocabulary.from_words(words, ["<unk>", "<pad>", "<s>", "</s>", *files.PIECES], SPECIALS))


SPECIALS = SpecialIds(unk=0, pad=1, bos=2, eos=3)
MERGES = (("a", "b</w>"), ("c", "d"), ("cd", "b</w>"))


def test_words_are_cut_by_merges_as_subword_nmt_cuts_them():
    tokenizer = split(SplitWords(merges=MERGES[:2]))
    ids = tokenizer.encode("  ab cdb\ta ")
    assert tokenizer.tokens(ids) == ["ab", "cd@@", "b", "a"]
    assert tokenizer.decode(ids) == tokenizer.normalise("  ab cdb\ta ") == "ab cdb a"
    assert tokenizer.spans(ids) == tokenizer.spans_in("ab cdb a") == [(0, 2), (2, 5), (5, 6), (6, 8)]
    assert tokenizer.beginning(ids[:2]) == "ab cd"
    assert tokenizer.spelling("ab c") == b"ab c"  # a target may continue the last word of a prefix
    assert Tokenizer.from_json(tokenizer.to_json()).encode("cdb <s>") == tokenizer.encode("cdb <s>") == [9, 8, 0, 0, 0]


def test_merges_are_undone_whose_piece_the_vocabulary_lacks():
    whole, restricted = (split(SplitWords(merges=MERGES, restricted=each)) for each in (False, True))
    assert whole.tokens(whole.encode("cdb")) == ["<unk>"]
    assert restricted.tokens(restricted.encode("cdb")) == ["cd@@", "b"]


def test_words_or_characters_may_be_pieces():
    words, characters = split(SplitWords(lowercase=True)), split(SplitWords(characters=True))
    assert words.tokens(words.encode("AB c@@")) == ["ab", "c@@"]
    assert words.decode(words.encode("ab c@@ d")) == "ab c@@ d"
    assert characters.tokens(characters.encode("ad b")) == ["a", "d", "<unk>", "b"]
    assert characters.decode([7, 6, 8]) == "adb"


def broken(path: Path, change) -> None:
    values = torch.load(path, weights_only=False)
    change(values)
    torch.save(values, path)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch ran",)


def damage(name):
    def change(values):
        state = values["model"]
        if name == "hostile":
            values["extra"] = Hostile()
        elif name == "nan":
            state["encoder.layers.0.fc1.weight"][0, 0] = float("nan")
        elif name == "rows":
            state["encoder.embed_tokens.weight"] = torch.zeros(12, files.D)
        elif name == "shape":
            state["encoder.layers.0.fc2.bias"] = torch.zeros(3)
        elif name == "parts":
            state["encoder.layers.0.self_attn.v_proj.weight"] = torch.zeros(files.D, 3)
        elif name == "inner":
            state["encoder.layers.0.fc1.weight"] = torch.zeros(5, files.D)
        elif name == "missing":
            del state["decoder.layers.0.fc2.bias"]
        elif name == "unknown":
            state["decoder.layers.1.fc2.bias"] = torch.zeros(files.D)
        elif name == "integers":
            state["encoder.layers.0.fc2.bias"] = torch.zeros(files.D, dtype=torch.int8)
        elif name == "layers":
            values["args"].encoder_layers = 10**9
        elif name == "heads":
            values["args"].decoder_attention_heads = 4
        elif name == "arch":
            values["args"].arch = "fconv"
        elif name == "adaptive":
            values["args"].adaptive_input = True
        elif name == "list":
            values["model"] = [state]
        elif name == "options":
            del values["args"]

    return change


ERRORS = {
    "hostile": "refused by torch's weights-only reader, which executes nothing: found posix.system, expected tensors "
    "and plain values",
    "nan": "encoder.layers.0.fc1.weight holds numbers that are not finite",
    "rows": "encoder.embed_tokens.weight has 12 rows, expected 11, the size of the vocabulary",
    "shape": "encoder.layers.0.feed_forward.outer.bias is [3], expected [8] by the settings",
    "parts": "encoder.layers.0.self_attn.v_proj.weight is [8, 3], expected rows as in "
    "encoder.layers.0.self_attn.q_proj.weight",
    "inner": "encoder.layers.0.fc1.weight is [5, 8], expected [12, 8] by its options",
    "missing": "no decoder.layers.0.fc2.bias, expected it by the options of the model",
    "unknown": "holds decoder.layers.1.fc2.bias, which a model of its options does not have",
    "integers": "encoder.layers.0.fc2.bias is int8, expected rows of float32, float16 or bfloat16",
    "layers": "model.encoder_layers: found 1000000000, expected less than or equal to 1000",
    "heads": "decoder_attention_heads: found 4, expected 2, that of encoder_attention_heads",
    "arch": "arch: found 'fconv', expected a transformer that translates",
    "adaptive": "adaptive_input: found True, expected False",
    "list": "model: expected weights by name",
    "options": "found model, expected a checkpoint of fairseq, OpenNMT-py, JoeyNMT or Sockeye, or --layout",
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_checkpoint_that_lies_is_refused_in_one_line_and_leaves_no_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = files.fairseq(tmp_path)
    broken(path, damage(name))
    with raises((ModelFolderError, SettingsError), f"{path}: {ERRORS[name]}"):
        translume.import_model(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "ran").exists()


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = files.fairseq(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with raises(ModelFolderError, f"{path}: cannot be read: Invalid argument"):
        translume.import_model(path, tmp_path / "model")


def test_a_vocabulary_that_is_no_dictionary_is_refused(tmp_path):
    path = files.fairseq(tmp_path)
    (tmp_path / "dict.en.txt").write_text("ab 1\nb\n", encoding="utf-8")
    with raises(DataError, f"{tmp_path / 'dict.en.txt'}: line 2: found 'b', expected a token and its count"):
        translume.import_model(path, tmp_path / "model")
    (tmp_path / "dict.de.txt").unlink()
    wanted = "no such file, expected it beside checkpoint_best.pt, or dictionaries with --vocabs"
    with raises(ModelFolderError, f"{tmp_path / 'dict.de.txt'}: {wanted}"):
        translume.import_model(path, tmp_path / "model")


def test_subword_files_of_two_sides_need_names_of_the_sides(tmp_path):
    path = files.fairseq(tmp_path)
    (tmp_path / "bpecodes").rename(tmp_path / "codes.de")
    (tmp_path / "codes.other").write_text(files.CODES, encoding="utf-8")
    message = (
        f"{tmp_path}: found codes.de, codes.other, expected one file of subwords, or one named for each: de and en"
    )
    with raises(SettingsError, message):
        translume.import_model(path, tmp_path / "model")
    (tmp_path / "codes.other").rename(tmp_path / "codes.en")
    translume.import_model(path, tmp_path / "model")


def test_vocabularies_are_for_fairseq_alone(tmp_path):
    path = files.joeynmt(tmp_path)
    with raises(SettingsError, f"vocabularies: found them for {path}, which is no checkpoint of fairseq"):
        translume.import_model(path, tmp_path / "model", vocabularies=[tmp_path / "codes.bpe"])


def test_a_zip_of_something_else_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(ModelFolderError, match="damaged"):
        translume.import_model(path, tmp_path / "model")
