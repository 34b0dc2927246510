"""Exports to ONNX: the graphs by themselves, as Optimum and transformers.js call them, and as steps of a search."""

import json
import os
import pickle
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.errors import raises

from translume.checkpoint import save_model
from translume.config import DecodingSettings, TokenizerSettings
from translume.errors import ModelFolderError, SettingsError
from translume.interchange.export import export
from translume.interchange.onnx import writer
from translume.interchange.onnx.graphs import trace
from translume.interchange.onnx.stepper import OnnxStepper, open_session
from translume.text import train_tokenizer
from translume.text.imported import HOSTILE
from translume.translator import load

from .conftest import random_checkpoint

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(os.environ.get("TRANSLUME_NODE_MODULES", ROOT / "build" / "node" / "node_modules"))
TEXTS = [
    "A man is riding a bicycle.", "Ein Mann fährt Fahrrad, 1,234 mal!", "我很饿。 hello世界", "naïve café", "two",
]  # fmt: skip


def checkpoint_of(**changes):
    shape = {"width": 26, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 13, "noise": 0.2}
    decoding = DecodingSettings(strategy="greedy", max_length=17, max_length_ratio=99.0)
    tokenizer = train_tokenizer(TokenizerSettings(size=401), TEXTS)
    return random_checkpoint(tokenizer, decoding=decoding, **{**shape, **changes})


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A model with T5's positions and gated blocks, which the config.json of no family expresses, and its exports.

    The model is traced once for both exports, since that takes seconds.
    """
    folder = tmp_path_factory.mktemp("onnx")
    checkpoint = checkpoint_of(positions="relative", activation="geglu", normalization="rms", head_width=3)
    save_model(folder / "models" / "en-de", checkpoint)
    traced = trace(checkpoint.model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "trace", lambda model: traced)
        certificates = {
            dtype: export(folder / "models" / "en-de", "onnx", folder / name, dtype=dtype)
            for dtype, name in (("float32", "out"), ("int8", "small"))
        }
    return folder, certificates


@pytest.fixture
def exported(exports):
    folder, certificates = exports
    return folder / "models" / "en-de", folder / "out", certificates["float32"]


def session(folder, name):
    return onnxruntime.InferenceSession(str(folder / "onnx" / f"{name}.onnx"))


def padded(translator, texts):
    """Ids [B, S] of texts with EOS, and the mask, as int64."""
    tokenizer = translator.checkpoint.source_tokenizer
    rows = [[*tokenizer.encode(text), tokenizer.specials.eos] for text in texts]
    ids = np.full((len(rows), max(map(len, rows))), tokenizer.specials.pad)
    mask = np.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    return ids, mask


def test_the_certificate_says_that_log_probabilities_and_translations_agree(exported):
    _, out, certificate = exported
    assert certificate.difference < 1e-4
    assert certificate.same_translations == certificate.sentences == 50
    assert json.loads((out / "config.json").read_text())["translume"] == certificate.to_dict()


def test_one_graph_translates_ids_by_greedy_search(exported):
    model, out, _ = exported
    translator = load(model, device="cpu")
    ids, mask = padded(translator, TEXTS)
    limits = np.array([17, 1, 5, 17, 3])
    (found,) = session(out, "translate").run(None, {"input_ids": ids, "attention_mask": mask, "max_length": limits})
    pad = translator.checkpoint.target_tokenizer.specials.pad
    assert found.shape[0] == len(TEXTS)
    for text, limit, row in zip(TEXTS, limits.tolist(), found.tolist(), strict=True):
        (wanted,) = translator.translate(text, max_length=limit, max_length_ratio=0.0).hypotheses
        assert row[: len(wanted.ids)] == list(wanted.ids)
        assert set(row[len(wanted.ids) :]) <= {pad}
    for limit in (1, 4):  # of all sentences
        given = {"input_ids": ids, "attention_mask": mask, "max_length": np.array([limit])}
        assert session(out, "translate").run(None, given)[0].shape[1] <= limit


def test_the_graphs_have_the_names_that_optimum_and_transformers_js_expect(exported):
    _, out, _ = exported
    cache = [f"0.{part}.{kind}" for part in ("decoder", "encoder") for kind in ("key", "value")]
    past = [f"past_key_values.{name}" for name in cache]
    present = [f"present.{name}" for name in cache]
    decoder = ["encoder_attention_mask", "input_ids"]
    expected = {
        "encoder_model": (["input_ids", "attention_mask"], ["last_hidden_state"]),
        "decoder_model": ([*decoder, "encoder_hidden_states"], ["logits", *present]),
        "decoder_with_past_model": ([*decoder, *past], ["logits", *present[:2]]),
        "decoder_model_merged": ([*decoder, "encoder_hidden_states", *past, "use_cache_branch"], ["logits", *present]),
        "translate": (["input_ids", "attention_mask", "max_length"], ["ids"]),
    }
    assert {path.stem for path in (out / "onnx").iterdir()} == expected.keys()
    for name, (inputs, outputs) in expected.items():
        graph = session(out, name)
        assert ([each.name for each in graph.get_inputs()], [each.name for each in graph.get_outputs()]) == (
            inputs,
            outputs,
        )
    merged = {each.name: each.shape for each in session(out, "decoder_model_merged").get_inputs()}
    assert merged["past_key_values.0.decoder.key"] == ["batch_size", 13, "past_decoder_sequence_length", "head_width"]
    assert merged["use_cache_branch"] == [1]


def test_the_merged_decoder_ignores_a_past_that_it_is_told_not_to_use(exported):
    """Older releases of Optimum pass a past of one position to the first step."""
    model, out, _ = exported
    ids, mask = padded(load(model, device="cpu"), TEXTS[:2])
    (memory,) = session(out, "encoder_model").run(None, {"input_ids": ids, "attention_mask": mask})
    given = {
        "input_ids": ids[:, :3],
        "encoder_attention_mask": mask,
        "encoder_hidden_states": memory,
        "use_cache_branch": np.array([False]),
    }
    merged = session(out, "decoder_model_merged")
    past = [each.name for each in merged.get_inputs() if each.name.startswith("past")]
    first, second = (
        merged.run(["logits"], given | {name: np.full((2, 13, length, 3), 7, np.float32) for name in past})[0]
        for length in (0, 1)
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize("beam", [1, 3])
def test_beam_search_that_steps_through_onnx_runtime_equals_the_plain_one(exported, beam):
    model, out, _ = exported
    plain = load(model, device="cpu", engine="plain")
    stepping = plain.step_with(OnnxStepper(out))
    stepping = pickle.loads(pickle.dumps(stepping))
    options = {"strategy": "beam", "beam": beam, "nbest": beam, "max_length": 9}
    for ours, theirs in zip(
        plain.translate_all(TEXTS, **options), stepping.translate_all(TEXTS, **options), strict=True
    ):
        assert [each.ids for each in ours.hypotheses] == [each.ids for each in theirs.hypotheses]
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)


def test_the_tokenizer_beside_the_graphs_gives_the_same_ids(exported):
    from tokenizers import Tokenizer

    model, out, _ = exported
    ours, theirs = (
        load(model, device="cpu").checkpoint.source_tokenizer,
        Tokenizer.from_file(str(out / "tokenizer.json")),
    )
    settings = json.loads((out / "tokenizer_config.json").read_text())
    assert settings["eos_token"] == ours.pieces()[ours.specials.eos]
    for text in (*TEXTS, *HOSTILE):
        assert theirs.encode(text).ids == [*ours.encode(text), ours.specials.eos], text


@pytest.mark.parametrize(
    ("changes", "dtype", "message"),
    [
        ({"head": {"kind": "entmax"}}, "float32",
         "model.head.kind: found 'entmax', expected a linear map and a softmax for onnx"),
        ({"decoder_mixing": "ssru"}, "float32",
         "model.decoder_mixing: found 'ssru', expected 'attention' for onnx"),
        ({}, "int16", "export: found weights as 'int16', expected 'float32' or 'int8' for onnx"),
    ],
    ids=["head", "ssru", "int16"],
)  # fmt: skip
def test_what_the_graphs_cannot_express_is_refused_by_name_and_nothing_is_written(tmp_path, changes, dtype, message):
    save_model(tmp_path / "model", checkpoint_of(**changes))
    with raises(SettingsError, message):
        export(tmp_path / "model", "onnx", tmp_path / "out", dtype=dtype)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_without_graphs_and_a_damaged_graph_are_named(tmp_path, exported):
    missing = tmp_path / "onnx" / "encoder_model_quantized.onnx"
    with raises(ModelFolderError, f"{missing}: no such file, expected one as `translume export … onnx` writes it"):
        OnnxStepper(tmp_path)
    damaged = tmp_path / "encoder_model.onnx"
    damaged.write_bytes((exported[1] / "onnx" / "encoder_model.onnx").read_bytes()[:999])
    with pytest.raises(ModelFolderError, match=r"encoder_model\.onnx: not a model that ONNX Runtime reads: "):
        open_session(damaged)


def test_an_int8_export_has_other_file_names_and_translates(exports):
    folder, certificates = exports
    small, certificate = folder / "small", certificates["int8"]
    assert {path.name for path in (small / "onnx").iterdir()} == {
        f"{path.stem}_quantized.onnx" for path in (folder / "out" / "onnx").iterdir()
    }
    assert json.loads((small / "config.json").read_text())["transformers.js_config"] == {"dtype": "q8"}
    assert certificate.dtype == "int8"
    assert 1e-4 < certificate.mean_difference < 0.1
    plain = load(folder / "models" / "en-de", device="cpu", engine="plain")
    assert plain.step_with(OnnxStepper(small)).translate(TEXTS[0]).text


@pytest.mark.parametrize("page", ["export.md", "keras.md"])
def test_the_examples_of_the_documentation_run(exports, page, monkeypatch, capsys):
    monkeypatch.chdir(exports[0])
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, page, "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_weights_beside_the_graph_give_the_same_results(exported, tmp_path, monkeypatch):
    """As they are written for a graph of more than 1.5 GB."""
    import onnx
    from onnx import numpy_helper

    from translume.interchange.onnx import graphs

    _, out, _ = exported
    model = onnx.load(out / "onnx" / "encoder_model.onnx")
    weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    del model.graph.initializer[:]
    monkeypatch.setattr(graphs, "MAX_EMBEDDED_BYTES", 0)
    graphs.save_graph(model.graph, tmp_path / "encoder_model.onnx", weights)
    assert (tmp_path / "encoder_model.onnx_data").stat().st_size > 4096
    given = {"input_ids": np.array([[5, 7, 2]]), "attention_mask": np.ones((1, 3), np.int64)}
    whole, apart = (
        open_session(folder / "encoder_model.onnx").run(None, given)[0] for folder in (out / "onnx", tmp_path)
    )
    assert np.array_equal(whole, apart)


NODE = """
import fs from 'node:fs';
import ort from 'onnxruntime-node';
import { env, pipeline } from '@huggingface/transformers';

const { texts, rows, limit } = JSON.parse(fs.readFileSync('given.json'));
env.allowRemoteModels = false;
env.localModelPath = './';
const translator = await pipeline('translation', 'out');
const session = await ort.InferenceSession.create('out/onnx/translate.onnx');
const found = { texts: [], rows: [] };
for (const text of texts) {
  found.texts.push((await translator(text, { max_new_tokens: limit }))[0].translation_text);
}
for (const row of rows) {
  const { ids } = await session.run({
    input_ids: new ort.Tensor('int64', BigInt64Array.from(row.map(BigInt)), [1, row.length]),
    attention_mask: new ort.Tensor('int64', new BigInt64Array(row.length).fill(1n), [1, row.length]),
    max_length: new ort.Tensor('int64', [BigInt(limit)], [1]),
  });
  found.rows.push(Array.from(ids.data, Number));
}
fs.writeFileSync('found.json', JSON.stringify(found));
"""


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "@huggingface" / "transformers").is_dir(),
    reason="transformers.js is not installed (make node)",
)
def test_transformers_js_and_onnx_runtime_in_node_translate_as_the_model_does(exported, tmp_path):
    model, out, _ = exported
    translator = load(model, device="cpu")
    tokenizer = translator.checkpoint.source_tokenizer
    shutil.copytree(out, tmp_path / "out")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "run.mjs").write_text(NODE, encoding="utf-8")
    rows = [[*tokenizer.encode(text), tokenizer.specials.eos] for text in TEXTS]
    (tmp_path / "given.json").write_text(json.dumps({"texts": TEXTS, "rows": rows, "limit": 17}), encoding="utf-8")
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    wanted = [translator.translate(text).hypotheses[0] for text in TEXTS]
    assert found["rows"] == [list(each.ids) for each in wanted]
    assert [text.strip() for text in found["texts"]] == [each.text.strip() for each in wanted]
