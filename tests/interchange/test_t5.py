"""T5, T5 v1.1, mT5, MADLAD-400 and ByT5 compute and tokenize as in transformers, and return to it."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import translume
from translume.checkpoint import load_checkpoint, read_config
from translume.config import Config, DecodingSettings
from translume.engine import build_engine, self_test
from translume.errors import SettingsError
from translume.interchange.huggingface.config import read_json
from translume.interchange.huggingface.t5 import T5
from translume.interchange.huggingface.t5_tokenizer import read_t5_tokenizer
from translume.text import Tokenizer
from translume.text.imported import HOSTILE as TEXTS
from translume.training import Validated, train
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")

LINES = (
    "A man is riding a bicycle.", "Two dogs play in the snow...", "The children sing, and 1,234 people listen!",
    "Ein Mann fährt Fahrrad.", "Niemand kennt das Café.", "Is the little girl eating ice cream?",
)  # fmt: skip
TAGS = ("<2de>", "<2fr>")
SENTINELS = tuple(f"▁<extra_id_{number}>" for number in reversed(range(5)))
UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
FAMILIES = {
    "t5": ("T5", {}, ()),
    "v1.1": ("T5", UNTIED, ()),
    "mt5": ("MT5", UNTIED, SENTINELS),
    "madlad": ("T5", {**UNTIED, "feed_forward_proj": "gated-silu"}, TAGS),
    "byt5": ("T5", {**UNTIED, "feed_forward_proj": "gelu"}, None),
}
"""Class, settings and special pieces of the SentencePiece model of each family."""


SHAPE = {"d_model": 34, "d_kv": 6, "d_ff": 29, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 5}


def write(opus, folder, family, rules="identity", **changes):
    """Save a model with random weights, and its tokenizer."""
    named, values, symbols = FAMILIES[family]
    folder.mkdir(parents=True)
    if symbols is None:
        tokenizer, size = transformers.ByT5Tokenizer(extra_ids=7), 266
    else:
        model = opus.sentencepiece_of(
            LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=list(symbols),
            normalization_rule_name=rules,
        )  # fmt: skip
        (folder / "spiece.model").write_bytes(model)
        extra = 0 if symbols else 11
        tokenizer = transformers.T5Tokenizer.from_pretrained(str(folder), extra_ids=extra)
        size = len(sentencepiece.SentencePieceProcessor(model_proto=model)) + extra + 3
    config = getattr(transformers, f"{named}Config")(
        vocab_size=size, relative_attention_num_buckets=8, relative_attention_max_distance=13, decoder_start_token_id=0,
        dropout_rate=0.0, **{**SHAPE, **values, **changes},
    )  # fmt: skip
    torch.manual_seed(23)
    model = getattr(transformers, f"{named}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
        if "tie_word_embeddings" in values:  # transformers 5 ties every new T5
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.3)
            model.all_tied_weights_keys.pop("lm_head.weight")
    if family == "t5":  # old checkpoints have a bias that is not used
        model.decoder.block[0].layer[1].EncDecAttention.relative_attention_bias = torch.nn.Embedding(8, 5)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["t5", "mt5", "byt5"])
def imported(opus, request, tmp_path_factory):
    """The folder of a family, the folder of its import, what the import found, and its tokenizer."""
    folder = tmp_path_factory.mktemp(request.param.replace(".", ""))
    source = write(opus, folder / "theirs", request.param)
    found = translume.import_model(source, folder / "ours")
    return source, folder / "ours", found, load_checkpoint(folder / "ours").source_tokenizer


def test_states_logits_and_translations_are_those_of_transformers(imported):
    source, folder, found, _ = imported
    assert found.certificate.difference < 1e-4
    assert not found.notes
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    ours = load(folder, device="cpu", engine="plain")
    beam = DecodingSettings(strategy="beam", beam=3, max_length=9, max_length_ratio=99.0, length_penalty=0.0)
    for text in LINES[:3]:
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = theirs.get_encoder()(**given).last_hidden_state
            memory = ours.checkpoint.model.encoder(given.input_ids, given.attention_mask.bool())
        torch.testing.assert_close(memory, states, rtol=0, atol=1e-4)
        written = theirs.generate(
            **given, num_beams=3, do_sample=False, max_length=10, length_penalty=0.0, bad_words_ids=[[0]],
            early_stopping="never",
        )  # fmt: skip
        (wanted, *_) = ours.translate(text, settings=beam).hypotheses
        assert written[0].tolist()[1:] == [*wanted.ids, *[1] * (len(wanted.ids) < len(written[0]) - 1)]


def test_an_export_computes_the_same_and_is_imported_again(imported, tmp_path):
    source, folder, _, _ = imported
    assert translume.export(folder, "huggingface", tmp_path / "out").difference < 1e-4
    back = translume.import_model(tmp_path / "out", tmp_path / "back")
    assert back.certificate.difference < 1e-4
    before, after = load_checkpoint(folder), load_checkpoint(tmp_path / "back")
    assert after.config.model == before.config.model
    assert same(after.source_tokenizer, before.source_tokenizer)
    given = torch.tensor([[5, 7, 11, 1]]), torch.tensor([[0, 13, 17]])
    models = [transformers.AutoModelForSeq2SeqLM.from_pretrained(each).eval() for each in (source, tmp_path / "out")]
    with torch.no_grad():
        one, other = (model(input_ids=given[0], decoder_input_ids=given[1]).logits for model in models)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_agrees_with_the_plain_model(opus, tmp_path, family):
    source = write(opus, tmp_path / "theirs", family, d_model=48, d_kv=16, d_ff=80)
    translume.import_model(source, tmp_path / "ours")
    model = load_checkpoint(tmp_path / "ours", device="cpu", dtype="fp32").model
    assert self_test(build_engine(model), model).agrees


HOSTILE = st.one_of(
    st.text(max_size=17),
    st.lists(
        st.sampled_from([*LINES, " ", "<extra_id_0>", "</s>", "<pad>", "▁", "...", "<2de>", ">>de<<", "ｶﾞ", "á", "\t"]),
        max_size=4,
    ).map("".join),
)  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(text=HOSTILE)
@example("<extra_id_0> ▁<extra_id_0>")
@example("<2de> A man <2fr>")
def test_texts_have_the_ids_of_sentencepiece_and_special_tokens_are_text(imported, text):
    source, _, _, tokenizer = imported
    found = tokenizer.encode(text)
    assert not set(found[1:]) & tokenizer.vocabulary.silent
    assert Tokenizer.from_json(tokenizer.to_json()).encode(text) == found
    if not (source / "spiece.model").exists():
        clean = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        assert found == [3 + byte for byte in clean.encode()]
        assert tokenizer.decode(found) == clean
    elif not any(tag in text for tag in (*TAGS, "<extra_id_")):
        peer = sentencepiece.SentencePieceProcessor(str(source / "spiece.model"))
        assert sorted(found) == sorted(peer.encode(text))  # rounding decides between equally likely orders of pieces


def test_the_folder_has_a_tokenizer_json_with_the_same_ids(imported):
    _, folder, _, ours = imported
    (path,) = folder.glob("tokenizer-*.json")
    library = tokenizers.Tokenizer.from_file(str(path))
    for text in (*LINES, "</s><pad> <extra_id_0>x", "ｶﾞ ﬁ a\u0301\t", ""):
        assert library.encode(text).ids == [*ours.encode(text), ours.specials.eos]
        assert library.decode(ours.encode(text), skip_special_tokens=False) == ours.decode(ours.encode(text))


def test_reserved_ids_add_nothing_to_a_text(imported):
    tokenizer = imported[3]
    silent = tokenizer.vocabulary.silent
    assert len(silent) >= 3
    ids = tokenizer.encode("A man")
    assert tokenizer.decode([*ids, *silent]) == "A man"


@pytest.mark.parametrize("imported", ["t5"], indirect=True)
def test_an_imported_model_is_fine_tuned_with_a_prompt(imported, tmp_path):
    rows = [{"en": LINES[0], "de": LINES[3]}, {"en": LINES[1], "de": LINES[4]}]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 5))
    prompt = "translate English to German: "
    files = {
        "train": [str(tmp_path / "train.jsonl")], "valid": [str(tmp_path / "valid.jsonl")], "columns": ["de"],
        "template": prompt + "{en}",
    }  # fmt: skip
    options = {
        "updates": 12, "warmup_updates": 1, "learning_rate": 0.01, "max_tokens": 611, "validate_every": 4,
        "precision": "fp32",
    }  # fmt: skip
    config = Config.build({"data": files, "training": options})
    losses = [
        event.nll for event in train(config, tmp_path / "out", source=imported[1]) if isinstance(event, Validated)
    ]
    assert losses[-1] < losses[0] - 0.3
    found = read_config(tmp_path / "out")
    assert found.model == read_config(imported[1]).model
    assert found.data.template == prompt + "{en}"
    (said, *_) = load(tmp_path / "out", device="cpu").translate(prompt + LINES[0]).hypotheses
    assert said.text


def same(one, other):
    """Whether two tokenizers have the same ids, special tokens and pieces."""
    assert [one.encode(text) for text in (*LINES, *TEXTS)] == [other.encode(text) for text in (*LINES, *TEXTS)]
    return replace(one.vocabulary, sentences=None) == replace(other.vocabulary, sentences=None)


def tokenizer_of(folder):
    return read_t5_tokenizer(folder, T5().read_config(folder / "config.json", read_json(folder / "config.json")))


def test_languages_of_madlad_are_tags_before_the_source(opus, tmp_path):
    source = write(opus, tmp_path / "in", "madlad")
    translume.import_model(source, tmp_path / "out")
    ours = load(tmp_path / "out", device="cpu", engine="plain")
    tokenizer = ours.checkpoint.source_tokenizer
    de = tokenizer.pieces().index("<2de>")
    assert tokenizer.languages == {"de": de, "fr": de + 1}
    assert not {de, de + 1} & set(tokenizer.encode("<2de> A man <2fr>"))
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()
    given = torch.tensor([[de, *tokenizer.encode("A man"), 1]])
    written = theirs.generate(given, do_sample=False, max_length=10, bad_words_ids=[[0]])
    greedy = DecodingSettings(strategy="greedy", max_length=9, max_length_ratio=99.0, to="de")
    (wanted, *_) = ours.translate("A man", settings=greedy).hypotheses
    assert written[0].tolist()[1 : 1 + len(wanted.ids)] == list(wanted.ids)
    assert wanted.ids


def test_tokenizer_json_alone_gives_the_same_ids(opus, tmp_path):
    source = write(opus, tmp_path / "in", "v1.1")
    one = tokenizer_of(source)
    (source / "spiece.model").unlink()
    other = tokenizer_of(source)
    assert (other.specials, other.pieces(), other.vocabulary.silent) == (
        one.specials,
        one.pieces(),
        one.vocabulary.silent,
    )
    for text in (*LINES, *TEXTS):
        assert other.encode(text) == one.encode(text)


@pytest.fixture(scope="module")
def untied(opus, tmp_path_factory):
    """A folder of T5 v1.1, and its settings."""
    folder = write(opus, tmp_path_factory.mktemp("untied") / "in", "v1.1")
    return folder, json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["T5EncoderModel"]},
         "architectures: found 'T5EncoderModel'"),
        ({"feed_forward_proj": "gated-relu"},
         "feed_forward_proj: found 'gated-relu'; did you mean 'gated-gelu'?"),
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True},
         "tie_word_embeddings: found true, but lm_head.weight differs from shared.weight; expected false"),
        ({"num_layers": 0}, "num_layers: found 0, expected at least 1"),
    ],
)  # fmt: skip
def test_what_a_checkpoint_has_and_we_have_not_is_named(untied, tmp_path, changes, message):
    source, values = untied
    path = source / "config.json"
    path.write_text(json.dumps({**values, **changes}))
    with pytest.raises(SettingsError) as raised:
        translume.import_model(source, tmp_path / "out")
    assert str(raised.value).startswith(f"{path}: {message}")
    assert not (tmp_path / "out").exists()
