"""Exports for the browser: the kernels in WebAssembly, run by Node, and the page in Chromium."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.errors import raises
from tokenizers import Tokenizer as LibraryTokenizer

from translume.checkpoint import load_checkpoint, save_model
from translume.config import DecodingSettings, TokenizerSettings
from translume.decoding import BeamSearch, Greedy
from translume.engine import build_engine
from translume.errors import SettingsError
from translume.interchange.export import export
from translume.interchange.importing import import_model
from translume.interchange.web import writer
from translume.interchange.web.model_file import model_file
from translume.kernels import building, loading
from translume.text import train_tokenizer
from translume.text.imported import HOSTILE
from translume.text.standard import standard_json
from translume.translator.constraints import build_rules

from .conftest import SOURCES, TARGETS, random_checkpoint, write_marian

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(os.environ.get("TRANSLUME_NODE_MODULES", ROOT / "build" / "node" / "node_modules"))
PAGE = Path(writer.__file__).parent / "page"
ORIGINALS = writer.web_kernels, writer.tokenizers_script
SCRIPT = MODULES / "@huggingface" / "tokenizers" / "dist" / "tokenizers.min.mjs"
TEXTS = [*SOURCES, "我很饿。 hello世界", "naïve café ☃☃", "two  \t words"]
SHAPE = {
    "width": 32, "feed_forward": 48, "attention_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "noise": 0.2,
    "max_positions": 61,
}  # fmt: skip


@pytest.fixture(scope="module")
def wasm(tmp_path_factory):
    """The kernels in WebAssembly."""
    path = tmp_path_factory.mktemp("wasm") / building.WEB
    try:
        building.compile_web(loading.FOLDER, path)
    except building.CompilerError as error:
        pytest.skip(str(error))
    return path.read_bytes()


@pytest.fixture(scope="module")
def int8():
    if shutil.which("node") is None or not loading.has_kernels() or not loading.kernels().int8:
        pytest.skip("no node, or the engine has no int8 here")


@pytest.fixture(scope="module")
def exporting(wasm, int8):
    """Export with these kernels and the script that `make node` installs."""
    if not SCRIPT.is_file():
        pytest.skip("@huggingface/tokenizers is not installed (make node)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "web_kernels", lambda: wasm)
        patch.setattr(writer, "tokenizers_script", SCRIPT.read_bytes)
        yield


def checkpoint_of(tokenizer=None, decoding=None, **changes):
    """A model with random weights, those of tables in fp16."""
    tokenizer = tokenizer or train_tokenizer(TokenizerSettings(size=397), [*SOURCES, *TARGETS])
    decoding = decoding or DecodingSettings(strategy="greedy", max_length=17)
    checkpoint = random_checkpoint(tokenizer, decoding=decoding, **{**SHAPE, **changes})
    with torch.no_grad():
        for name, parameter in checkpoint.model.named_parameters():
            if name.endswith("table.weight") or name == "head.weight":
                parameter.copy_(parameter.half())
    return checkpoint


@pytest.fixture(scope="module")
def page(exporting, tmp_path_factory):
    """The folder of an exported page, and its certificate."""
    folder = tmp_path_factory.mktemp("web")
    save_model(folder / "model", checkpoint_of(head={"tie": "all"}))
    return folder / "page", export(folder / "model", "web", folder / "page")


def in_node(folder, script, given=()):
    """Run a script that sets `found`, with the page in a folder as `page`; return that."""
    code = f"""
import fs from 'node:fs';
import {{ Tokenizer }} from '{folder.as_uri()}/tokenizers.js';
import {{ Engine, Translator }} from '{folder.as_uri()}/translume.js';
const given = JSON.parse(fs.readFileSync(0)), bytes = (name) => fs.readFileSync('{folder}/' + name);
const page = await Translator.load(Tokenizer, async (name) => new Response(bytes(name)));
let found;
{script}
console.log(JSON.stringify(found));
"""
    return run_node(code, given)


def run_node(code, given):
    command = ["node", "--input-type=module", "--eval", code]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_certificate_of_the_page_is_stored(page):
    folder, certificate = page
    assert json.loads((folder / "config.json").read_text()) == {"translume": certificate.to_dict()}
    assert 1e-4 < certificate.mean_difference < 0.1
    about = json.loads((folder / "model.json").read_text())
    assert {"./", "model.json", *about["files"]} == set(about["files"])
    assert {*about["files"], "sw.js", "config.json"} == {"./", *(path.name for path in folder.iterdir())}


MODELS = {
    "sinusoids, tied": {"head": {"tie": "all"}},
    "relative, gated, rms": {"positions": "relative", "activation": "geglu", "normalization": "rms", "bias": False},
    "rotary, untied, post": {
        "positions": "rotary", "norm": "post", "activation": "gelu", "head": {"tie": "none", "bias": False},
    },
    "ssru, learned, narrow heads": {"decoder_mixing": "ssru", "positions": "learned", "activation": "swiglu"},
    "norm of embeddings": {"embedding_norm": True, "head_width": 32, "encoder_layers": 1},
}  # fmt: skip


ENGINE = """
import fs from 'node:fs';
import { Engine } from 'PAGE/translume.js';
const { rows, bos, beams, folder } = JSON.parse(fs.readFileSync(0));
const engine = await Engine.load(...['kernels.wasm', 'model.bin'].map((name) => fs.readFileSync(`${folder}/${name}`)));
console.log(JSON.stringify(rows.map((ids) => beams.map((beam) => {
  const hypotheses = engine.search(ids, [bos], { beam, limit: 17 });
  return { hypotheses, steps: engine.inspect([bos], hypotheses[0].tokens, 7) };
}))));
"""


@pytest.mark.parametrize("name", MODELS)
def test_searches_in_webassembly_are_those_of_the_int8_engine(wasm, int8, tmp_path, name):
    checkpoint = checkpoint_of(**MODELS[name])
    engine = build_engine(checkpoint.model, "int8")
    engine.decoder.cache_dtype = np.dtype(np.float32)  # of the keys and values in WebAssembly
    tokenizer = checkpoint.target_tokenizer
    bos, eos = tokenizer.specials.bos, tokenizer.specials.eos
    search = writer._search(checkpoint, "int8")
    (tmp_path / "model.bin").write_bytes(model_file(engine.network, search, 61))
    (tmp_path / "kernels.wasm").write_bytes(wasm)
    rows = [[*tokenizer.encode(text), eos] for text in TEXTS]
    given = {"rows": rows, "bos": bos, "beams": [1, 3], "folder": str(tmp_path)}
    found = run_node(ENGINE.replace("PAGE", PAGE.as_uri()), given)
    same, differences = 0, []
    for ids, by_beam in zip(rows, found, strict=True):
        for beam, row in zip((1, 3), by_beam, strict=True):
            best, scores = row["hypotheses"][0], [each["score"] for each in row["hypotheses"]]
            assert scores == sorted(scores, reverse=True)
            source, target = np.array([ids]), np.array([best["tokens"]])
            read = np.insert(target[:, :-1], 0, bos, axis=1)
            masks = np.ones(source.shape, np.bool_), np.ones(target.shape, np.bool_)
            log_probs = [each["logProb"] for each in row["steps"]]
            for others in (engine.score(source, masks[0], read, target, masks[1])[0], best["logProbs"]):
                differences += np.abs(np.subtract(log_probs, others)).tolist()
            for step, token in zip(row["steps"], best["tokens"], strict=True):
                listed = [each["logProb"] for each in step["likeliest"]]
                assert listed == sorted(listed, reverse=True)
                assert sum(map(np.exp, listed)) <= 1 + 1e-5
                assert beam > 1 or step["likeliest"][0]["token"] == token
            strategy = Greedy() if beam == 1 else BeamSearch(width=beam, nbest=beam)
            rules = build_rules(tokenizer, [False], checkpoint.config.decoding)
            begun = engine.complete_search(
                engine.start(source, masks[0]), prompts=np.array([[bos]]), eos=eos, strategy=strategy,
                limits=np.array([17]), rules=rules,
            )  # fmt: skip
            assert begun is not None
            begun[0].run(99)
            same += list(begun[0].hypotheses(0)[0].tokens) == best["tokens"]
    # Sums of another order round a few activations to another int8.
    assert np.median(differences) < 1e-5
    assert max(differences) < 0.1
    assert same >= 16  # of 18: random weights have close choices


KINDS = [
    *({"kind": kind} for kind in ("bpe", "unigram", "character", "byte", "word")),
    *({"kind": kind, "unknown": "token"} for kind in ("bpe", "unigram", "wordpiece", "character", "word")),
    {"kind": "bpe", "lowercase": True, "normalization": "nfkc"},
    {"kind": "unigram", "whitespace": "keep", "normalization": "nfd"},
]


def test_the_page_has_the_ids_and_texts_of_every_tokenizer(page):
    texts = [*HOSTILE, *TEXTS, *TARGETS, "Ёжик ΑΣ. السلام عليكم नमस्ते क्षत्रिय 안녕하세요 ß–ü ☃👩‍👩‍👧"]
    given, wanted = [], []
    for settings in KINDS:
        tokenizer = train_tokenizer(TokenizerSettings(size=397, **settings), [*SOURCES, *TARGETS, "我很饿。"])
        checkpoint = checkpoint_of(tokenizer, encoder_layers=1, decoder_layers=1)
        document, _ = writer._tokenizer(tokenizer)
        about = writer._about(checkpoint, writer._search(checkpoint, "int8"), 61, document["model"])
        rows = [tokenizer.encode(text) for text in texts]
        library = LibraryTokenizer.from_str(standard_json(tokenizer))
        assert [each.ids for each in library.encode_batch(texts, add_special_tokens=False)] == rows
        given.append({"about": about, "document": document, "texts": texts, "rows": rows})
        wanted.append([rows, [tokenizer.decode(ids) for ids in rows]])
    script = """
    found = given.map(({ about, document, texts, rows }) => {
      const own = new Translator(null, about, new Tokenizer(document, {}));
      return [texts.map((each) => own.encode(each)), rows.map((each) => own.decode(each))];
    });"""
    found = in_node(page[0], script, given)
    for settings, one, other in zip(KINDS, found, wanted, strict=True):
        assert one == other, settings


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_an_imported_sentencepiece_model_has_the_ids_of_the_library(exporting, tmp_path):
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
             {"attention_heads": 2, "ffn_dim": 48}.items()}  # fmt: skip
    write_marian(tmp_path / "marian", d_model=32, tokenizer={"normalization_rule_name": "nmt_nfkc"}, **sizes)
    import_model(tmp_path / "marian", tmp_path / "model")
    export(tmp_path / "model", "web", tmp_path / "page")  # which compares them for hostile texts
    texts = [*TEXTS, "½ﬁ①Ⅷ ｶﾞ ﷺ é ㍿ 한국어 \u200d ＡＢＣ", ">>deu<< hi ＡＢ", "▁a▁ ▁"]
    tokenizer = load_checkpoint(tmp_path / "model").source_tokenizer
    library = LibraryTokenizer.from_str(standard_json(tokenizer))
    found = in_node(tmp_path / "page", "found = given.map((text) => page.encode(text));", texts)
    assert found == [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]


def test_a_tokenizer_that_javascript_reads_differently_is_refused(exporting, tmp_path, monkeypatch):
    about = writer._about
    monkeypatch.setattr(writer, "_about", lambda *arguments: about(*arguments) | {"unknown": {}})
    tokenizer = train_tokenizer(TokenizerSettings(kind="unigram", size=397), [*SOURCES, *TARGETS])
    save_model(tmp_path / "model", checkpoint_of(tokenizer))
    with pytest.raises(SettingsError, match=r"^tokenizer: '.+' has ids \[.+\] in @huggingface/tokenizers@[\d.]+, exp"):
        export(tmp_path / "model", "web", tmp_path / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": {"kind": "entmax"}}, "model.head.kind: found 'entmax', expected a linear map and a softmax for web"),
        ({"segments": 2}, "model.segments: found 2, expected 0 for web"),
        ({"width": 26, "attention_heads": 1}, "engine: model.width: found 26, the kernels need a multiple of 16"),
        ({"decoding": DecodingSettings(ban=("a",))}, "decoding.ban: found ('a',), expected () for web"),
        (
            {"decoding": DecodingSettings(strategy="sampling")},
            "decoding.strategy: found 'sampling', expected 'greedy' or 'beam' for web",
        ),
    ],
    ids=["head", "segments", "width", "ban", "sampling"],
)
def test_what_the_kernels_or_the_page_do_not_have_is_refused_by_name(tmp_path, changes, message):
    save_model(tmp_path / "model", checkpoint_of(**changes))
    with raises(SettingsError, message):
        export(tmp_path / "model", "web", tmp_path / "page")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_other_weights_than_int8_are_refused(tmp_path):
    save_model(tmp_path / "model", checkpoint_of())
    with raises(SettingsError, "export: found weights as 'float16', expected 'int8' for web"):
        export(tmp_path / "model", "web", tmp_path / "page", dtype="float16")


def test_a_missing_compiler_and_a_missing_npm_are_named_with_what_installs_them(monkeypatch):
    monkeypatch.setattr(shutil, "which", {"clang": "/no/clang"}.get)
    monkeypatch.setattr(writer, "LIBRARIES", "nowhere")
    with raises(
        SettingsError,
        "export: kernels.wasm needs clang with lld and wasi-libc (Debian: apt install clang lld wasi-libc), or a wheel "
        "that has it: /no/clang: [Errno 2] No such file or directory: '/no/clang'",
    ):
        ORIGINALS[0]()
    with raises(
        SettingsError,
        "export: web needs Node, and npm for @huggingface/tokenizers@0.2.0: found no npm; see https://nodejs.org",
    ):
        ORIGINALS[1]()


def test_damaged_files_and_browsers_without_simd_are_named(page):
    script = """
    const [wasm, model] = ['kernels.wasm', 'model.bin'].map(bytes), reason = (error) => error.message;
    const fault = (...files) => Engine.load(...files).then(() => 'none', reason);
    found = [];
    for (const size of [0, 7, 99, model.length - 16]) found.push(await fault(wasm, model.subarray(0, size)));
    found.push(await fault(wasm.subarray(0, 99), model));
    const changed = Uint8Array.from(model);
    changed.set([255, 255, 255, 255, 255, 255, 255, 127], 16);
    found.push(await fault(wasm, changed));
    for (const ids of [[], [-1], [99999], Array(62).fill(5)]) {
      try { page.engine.search(ids, [1], { limit: 3 }); } catch (error) { found.push(reason(error)); }
    }"""
    damaged = "model.bin: damaged, or of another version"
    unreadable = "the engine cannot read these tokens, or its logits are not finite"
    simd = "This browser has no WebAssembly with SIMD; a newer one has."
    assert in_node(page[0], script) == [*[damaged] * 4, simd, damaged, *[unreadable] * 4]


def test_lines_are_cut_into_sentences_and_long_ones_are_named(page):
    script = """
    page.about.splits = true;
    found = [page.translate('  Two dogs. Two cats! '), page.translate(' '), page.translate('12 %')];
    try { page.translate('dog '.repeat(99)); } catch (error) { found.push(error.message); }"""
    two, none, kept, fault = in_node(page[0], script)
    assert [each["source"] for each in two["pieces"]] == ["Two dogs.", "Two cats!"]
    assert two["text"] == " ".join(each["text"] for each in two["pieces"]).strip()
    assert none["text"] == ""
    assert kept["pieces"][0]["source"] == "12 %"
    assert fault.endswith("tokens, expected at most 61")


def test_the_kernels_in_webassembly_agree_with_scalar_loops(wasm, tmp_path):
    """The checks of every instruction set, with the int8 products of the others."""
    checks = ROOT / "tests" / "engine" / "check_kernels.c"
    command = [
        "clang",
        "--target=wasm32-wasi",
        "-O1",
        "-msimd128",
        "-I",
        str(loading.FOLDER),
        "-Wl,-z,stack-size=1048576",
    ]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "check.wasm"), str(checks), str(loading.FOLDER / "linear.c")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or shutil.which("node") is None:
        pytest.skip(f"needs node and clang's library for WebAssembly (libclang-rt-dev-wasm32): {done.stderr[-200:]}")
    run = "const w = new (require('node:wasi').WASI)({ version: 'preview1', returnOnExit: true });"
    run += f"WebAssembly.instantiate(require('fs').readFileSync('{tmp_path}/check.wasm'), w.getImportObject())"
    run += ".then(({ instance }) => w.start(instance));"
    command = ["node", "--no-warnings", "--eval", run]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.stdout.startswith("agrees "), found.stdout + found.stderr
    assert found.stdout != "agrees 0\n"


@pytest.fixture
def site(page):
    """The address of the page on a server, and a function that stops it."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=page[0]))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop():
        server.shutdown()
        server.server_close()

    yield f"http://127.0.0.1:{server.server_port}/", stop
    stop()


DONE = "document.querySelector('#output').dataset.done === document.querySelector('#text').value"


def test_the_page_translates_shows_distributions_and_works_offline(browser, page, site):
    address, stop = site
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    tab, faults = context.new_page(), []
    tab.on("console", lambda message: faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.goto(address)
    text = "Two dogs play in the snow...\n\nEveryone knows the café."
    tab.fill("#text", text)
    tab.wait_for_selector("#output .token")
    tab.wait_for_function(DONE)
    wanted = in_node(page[0], "found = given.map((line) => page.translate(line).text);", text.split("\n"))
    shown = [each.inner_text().replace("⏎", "").strip() for each in tab.locator("#output p").all()]
    assert [each.split() for each in shown] == [each.split() for each in wanted]
    # By keyboard: to the output, to the next token, open it, close it.
    first = tab.locator("#output .token").first
    first.focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Enter")
    assert tab.locator("#bars .bar").count() in (11, 12)
    shares = [float(each.inner_text().split()[0]) for each in tab.locator("#bars .number").all()]
    assert sum(shares) == pytest.approx(100, abs=1)
    assert tab.locator("#bars [aria-current]").count() == 1
    # Another token continues the translation.
    other = tab.locator("#bars button:not([aria-current]):enabled").first
    name = other.locator(".name").inner_text()
    other.click()
    tab.wait_for_function("!document.querySelector('#step:not([hidden])')")
    assert tab.locator("#output p").first.locator("button").nth(1).get_attribute("aria-label").startswith(name)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "default-src 'none'" in tab.locator("meta[http-equiv]").get_attribute("content")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert faults == []
    tab.wait_for_function("navigator.serviceWorker.controller !== null")
    stop()
    tab.goto(address)
    tab.fill("#text", text)
    tab.wait_for_function(DONE)
    assert [each.inner_text().replace("⏎", "").strip() for each in tab.locator("#output p").all()] == shown
    context.close()
