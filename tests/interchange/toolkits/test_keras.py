"""Weights that Keras saved of two tutorials' models are imported with Keras' scores and ids, or refused."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.errors import raises
from tests.interchange.toolkits import keras_files as files

import translume
from translume.errors import DataError, ModelFolderError, SettingsError

h5py = pytest.importorskip("h5py", reason="h5py is not installed (extra: keras)")
RECORDED = {
    "keras_io": [-4.94291, -3.95802, -4.16795, -5.28239, -1.83154, -4.02706],
    "tensorflow": [-3.09214, -4.99589, -5.73303, -2.30934, -4.44413, -3.22534],
}
"""Log-probabilities of TARGET and its end after SOURCE that Keras 3.15.1 computed of the files of keras_files.py."""
FILE = "model.weights.h5"
EXPECTED = (
    "expected the layers of the tutorial of keras.io (TransformerEncoder, TransformerDecoder, PositionalEmbedding) or "
    "tensorflow.org (Encoder, Decoder)"
)


def imported(folder: Path, values: dict[str, np.ndarray], name: str = FILE, tokens=files.WORDS):
    path = files.save(folder / name, values)
    result = translume.import_model(path, folder / "model", vocabularies=files.vocabularies(folder, tokens))
    return result, translume.load(folder / "model", device="cpu", dtype="fp32")


@pytest.mark.parametrize("name", [FILE, "model.keras"])
def test_scores_of_the_tutorial_of_keras_io_are_those_of_keras(tmp_path, name):
    result, translator = imported(tmp_path, files.keras_io(), name)
    found = translator.score(files.SOURCE, files.TARGET)
    assert list(found.token_log_probs) == pytest.approx(RECORDED["keras_io"], abs=2e-5)
    settings = translator.config.model
    assert (settings.head_width, settings.positions, settings.positions_of_sides) == (5, "learned", files.POSITIONS)
    assert result.notes[0].startswith(f"{tmp_path / name}: not in the file, so assumed: relu, ")


@pytest.mark.parametrize("variables", [files.tensorflow, files.keras_2])
def test_scores_of_the_tutorial_of_tensorflow_are_those_of_keras(tmp_path, variables):
    _, translator = imported(tmp_path, variables(), tokens=files.PIECES)
    found = translator.score(files.SOURCE, files.TARGET)
    assert list(found.token_log_probs) == pytest.approx(RECORDED["tensorflow"], abs=2e-5)
    assert translator.config.model.language_tags == "source"  # [START] begins a source


def test_words_are_cut_as_text_vectorization_cuts_them(tmp_path):
    _, translator = imported(tmp_path, files.keras_io())
    source, target = translator.checkpoint.source_tokenizer, translator.checkpoint.target_tokenizer
    text = "  Élan ÉLAN I'm [end]\tA\u00a0man, dog-x x "
    assert source.tokens(source.encode(text)) == ["Élan", "Élan", "im", "end", "[UNK]", "[UNK]", "x"]
    assert source.specials.source_end == ()
    assert target.tokens(target.encode("¿Un été? [b] B vélo!")) == ["un", "[UNK]", "[UNK]", "b", "vélo"]
    assert len(source) == files.ROWS[0]  # a row of no token is still a choice of the softmax
    assert target.decode([2, 4, 5, 16, 3]) == "un homme"


def test_the_longest_target_is_that_of_the_tutorial(tmp_path):
    _, translator = imported(tmp_path, files.keras_io())
    assert translator.config.decoding.max_length == files.POSITIONS[1]
    hypothesis = translator.translate("a man rides a bike " * 9).hypotheses[0]
    assert len(hypothesis.ids) <= files.POSITIONS[1]


def without(values, name):
    return {path: value for path, value in values.items() if path != name}


VARIABLES = {
    "missing": (
        lambda values: without(values, "layers/transformer_decoder/attention_2/key_dense/vars/1"),
        "no layers.transformer_decoder.attention_2.key_dense.bias, expected it by the options of the model",
    ),
    "unknown": (
        lambda values: values | {"layers/transformer_encoder/gate/vars/0": np.zeros(3, np.float32)},
        "holds layers.transformer_encoder.gate.weight, which a model of its options does not have",
    ),
    "shape": (
        lambda values: values | {"layers/transformer_encoder/layernorm_1/vars/0": np.zeros(3, np.float32)},
        "encoder.layers.0.around_attention.norm.weight is [3], expected [6] by the settings",
    ),
    "nan": (
        lambda values: values | {"layers/dense/vars/1": np.full(17, np.nan, np.float32)},
        "layers.dense.bias holds numbers that are not finite",
    ),
    "integers": (
        lambda values: values | {"layers/dense/vars/1": np.zeros(17, np.int8)},
        "layers.dense.bias is int8, expected rows of float32, float16 or bfloat16",
    ),
    "heads": (
        lambda values: values | {"layers/transformer_encoder/attention/query_dense/vars/0": np.zeros((6, 5, 2))},
        "found attention heads of several sizes, expected one number and size of heads",
    ),
    "tables": (
        lambda values: values | {"layers/positional_embedding/token_embeddings/vars/0": np.float32(1)},
        f"found layers.dense.weight, layers.dense.bias, layers.dropout.seed_generator.weight, {EXPECTED}",
    ),
    "nested": (
        lambda values: {f"layers/functional/{path}": value for path, value in values.items()},
        f"found a decoder that is a model in the model, which reads padding, {EXPECTED}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_of_another_model_are_refused_by_name(tmp_path, name):
    change, message = VARIABLES[name]
    with raises((ModelFolderError, SettingsError), f"{tmp_path / FILE}: {message}"):
        imported(tmp_path, change(files.keras_io()))
    assert not (tmp_path / "model").exists()


OUTPUT = "layers/dense/vars/0"


def lying(path: Path, name: str) -> None:
    """Make the output layer one that says more than is in the file."""
    secret = path.with_name("secret")
    secret.write_bytes(bytes(4 * 6 * 17))
    with h5py.File(path, "a") as file:
        values = file[OUTPUT][()]
        if name == "format":
            file.attrs["layer_names"] = ["dense"]
            return
        del file[OUTPUT]
        if name == "compressed":
            file.create_dataset(OUTPUT, data=values, compression="gzip")
        elif name == "huge":
            file.create_dataset(OUTPUT, (10**6, 10**6), np.float32, chunks=(100, 100))
        elif name == "external":
            file.create_dataset(OUTPUT, (6, 17), np.float32, external=[(str(secret), 0, secret.stat().st_size)])
        elif name == "virtual":
            layout = h5py.VirtualLayout((6, 17), np.float32)
            layout[:] = h5py.VirtualSource(str(path.with_name("other.h5")), "x", (6, 17))
            file.create_virtual_dataset(OUTPUT, layout)
        elif name == "link":
            file[OUTPUT] = h5py.ExternalLink("other.h5", "x")
        elif name == "circle":
            file["layers/dense/vars/self"] = file["layers"]


LIES = {
    "compressed": f"{OUTPUT} is compressed or not in the file",
    "huge": f"{OUTPUT} is compressed or not in the file",
    "external": f"{OUTPUT} is compressed or not in the file",
    "virtual": f"{OUTPUT} is compressed or not in the file",
    "link": "no layers.dense.weight, expected it by the options of the model",
    "circle": "no layers.dense.weight, expected it by the options of the model",
    "format": "in the format of Keras 1, expected a file NAME.weights.h5 or .keras",
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_says_more_than_is_in_it_is_refused(tmp_path, name):
    path = files.save(tmp_path / FILE, files.keras_io())
    lying(path, name)
    with raises(ModelFolderError, f"{path}: {LIES[name]}"):
        translume.import_model(path, tmp_path / "model", vocabularies=files.vocabularies(tmp_path, files.WORDS))


def test_an_archive_may_hold_little_more_than_its_size(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(10**7))
    with raises(ModelFolderError, f"{path}: no model.weights.h5, or one much larger than the archive"):
        translume.import_model(path, tmp_path / "model", vocabularies=files.vocabularies(tmp_path, files.WORDS))


def test_damaged_files_are_refused(tmp_path):
    path = files.save(tmp_path / FILE, files.keras_io())
    content = path.read_bytes()
    for end in (0, 7, len(content) // 2, len(content) - 100):
        path.write_bytes(content[:end])
        with pytest.raises(ModelFolderError, match="damaged: "):
            translume.import_model(path, tmp_path / "model", vocabularies=files.vocabularies(tmp_path, files.WORDS))


def test_vocabularies_must_fit(tmp_path):
    path = files.save(tmp_path / FILE, files.keras_io())
    source, target = files.vocabularies(tmp_path, files.WORDS)
    with raises(SettingsError, f"{path}: found 0 vocabularies, expected --vocabs SOURCE TARGET"):
        translume.import_model(path, tmp_path / "model")
    words = files.WORDS["target"]
    for tokens, message in (
        ([*words, "a", "b"], "found 18 tokens, expected at most 17, none of them twice"),
        ([*words[:-1], "un"], "found 16 tokens, expected at most 17, none of them twice"),
        ([*words[:-1], 7], "found 16 tokens, expected at most 17, none of them twice"),
        (words[2:], "found ['[start]', '[end]'] first, expected '' and '[UNK]', or '[PAD]' and '[UNK]'"),
        ([*words[:2], *words[3:]], "the vocabulary lacks [start]"),
    ):
        target.write_text(json.dumps(tokens), encoding="utf-8")
        with raises(DataError, f"{target}: {message}"):
            translume.import_model(path, tmp_path / "model", vocabularies=[source, target])
