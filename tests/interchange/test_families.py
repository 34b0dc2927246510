"""Models of transformers' families give the same numbers here, and the same weights on the way back."""

import base64
import json
import re
from pathlib import Path

import pytest
import torch
from tests.errors import raises
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

import translume
from translume.checkpoint import build_model
from translume.config import Config, ModelSettings
from translume.engine import build_engine, self_test
from translume.errors import SettingsError
from translume.interchange.huggingface.reader import family_for, family_named
from translume.interchange.onnx.writer import generation_values
from translume.text.standard import standard_json
from translume.training import Validated
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

PLACE, SIZE = Path("config.json"), 97
SHAPE = {
    "vocab_size": SIZE, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
    "decoder_attention_heads": 3, "encoder_ffn_dim": 80, "decoder_ffn_dim": 80, "max_position_embeddings": 41,
    "decoder_start_token_id": 2,
}  # fmt: skip
UNUSED = {"bart": 2, "mbart": 2, "m2m_100": 0}
"""Rows of the position table before the first position."""


def random_model(family, **changes):
    """A model of transformers with random weights, norms and biases, and its config.json."""
    config = transformers.AutoConfig.for_model(family.model_type, **{**SHAPE, **changes})
    torch.manual_seed(23)
    model = getattr(transformers, family.architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if family.logit_bias:
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    return model, config.to_dict()


@pytest.fixture(
    scope="module",
    params=["BartForConditionalGeneration", "MBartForConditionalGeneration", "M2M100ForConditionalGeneration"],
)
def pair(request):
    """A family, a model of transformers, its settings here, and the model made from its weights."""
    family = family_named(PLACE, {"architectures": [request.param]})
    theirs, values = random_model(family, scale_embedding=request.param != "BartForConditionalGeneration")
    state = theirs.state_dict()
    settings = ModelSettings(**family.model_values(family.read_config(PLACE, values), state))
    model = build_model(settings, SIZE, SIZE).eval()
    model.load_state_dict(family.weights_from(state, settings))
    return family, theirs, settings, model


@torch.no_grad()
def test_encoder_states_and_logits_equal_those_of_transformers(pair):
    _, theirs, _, model = pair
    mask = torch.arange(11)[None] < torch.tensor([11, 5, 8])[:, None]
    source, target = torch.randint(4, SIZE, (3, 11)).masked_fill(~mask, 1), torch.randint(4, SIZE, (3, 7))
    wanted = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target, use_cache=False)
    state = model.start(source, mask)
    memory = wanted.encoder_last_hidden_state.masked_fill(~mask[..., None], 0.0)
    torch.testing.assert_close(state.memory, memory, rtol=0, atol=1e-5)
    hidden, _ = model.decoder(target, state)
    belief = model.head.next_token(hidden.flatten(0, 1), None).log_probs()
    torch.testing.assert_close(belief, wanted.logits.flatten(0, 1).log_softmax(-1), rtol=0, atol=1e-5)


def test_the_way_back_gives_the_same_family_and_weights(pair):
    family, theirs, settings, model = pair
    assert family_for(settings).architecture == family.architecture
    weights, back = theirs.state_dict(), family.weights_to(model, settings)
    assert set(back) == set(weights)
    for name, value in weights.items():
        unused = UNUSED[family.model_type] if "embed_positions" in name else 0
        assert back[name].shape == value.shape, name
        assert torch.equal(back[name][unused:], value[unused:]), name


def test_the_engine_agrees_with_the_model(pair):
    *_, model = pair
    for dtype in ("fp32", "int8"):
        assert self_test(build_engine(model, dtype), model).agrees


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("BartForConditionalGeneration", {"normalize_before": True},
         "normalize_before: found true, expected false for BartForConditionalGeneration"),
        ("MBartForConditionalGeneration", {"add_final_layer_norm": False},
         "add_final_layer_norm: found false, expected true for MBartForConditionalGeneration"),
        ("M2M100ForConditionalGeneration", {"pad_token_id": 3},
         "pad_token_id: found 3, expected 1, after which M2M100ForConditionalGeneration counts positions"),
        ("BartForConditionalGeneration", {"decoder_attention_heads": 2},
         "decoder_attention_heads: found 2, expected 3, that of encoder_attention_heads; here both are alike"),
        ("BartForConditionalGeneration", {"tie_word_embeddings": False},
         "tie_word_embeddings: found false, expected true for BartForConditionalGeneration"),
    ],
)  # fmt: skip
def test_unsupported_settings_of_a_family_are_refused_by_name(architecture, values, message):
    family = family_named(PLACE, {"architectures": [architecture]})
    whole = {**SHAPE, "pad_token_id": 1, "eos_token_id": 2, **values}
    with raises(SettingsError, f"config.json: {message}"):
        family.model_values(family.read_config(PLACE, whole), {})


HOSTILE = (
    "", "a", "  a  b ", "\u00a0A man\u00a0", "全角　スペース", "👨\u200d👩\u200d👧 e\u0301 a\u0308",
    "</s> <s> <mask> <unk> eng_Latn en_XX",
    "\x00\x01 tab\tnew\u2028line\r\n", "w" * 300, "ﬁne ①",
    "▁a ▁ ▁▁b", "\ud800", "Two dogs play... 1,234.5 don't",
)  # fmt: skip
LINES = [
    *HOSTILE[1:5],
    "A man is riding a bicycle.",
    "Ein Mann fährt Fahrrad, 1,234 mal!",
    "Two dogs play in the snow.",
]


def bart_tokenizer(opus):
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=331, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(LINES, trainer)
    model = json.loads(library.to_str())["model"]
    return transformers.BartTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def wrapped(opus, name, kind, folder):
    (folder / "sentencepiece.bpe.model").write_bytes(opus.sentencepiece_of(LINES, model_type=kind, vocab_size=151))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    return getattr(transformers, name).from_pretrained(folder)


def nllb_tokenizer(opus, folder):
    """A tokenizer with tags: reading a SentencePiece file alone gives one without."""
    document = json.loads(wrapped(opus, "NllbTokenizer", "bpe", folder).backend_tokenizer.to_str())
    charsmap = document["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    vocabulary = {piece: id_ for piece, id_ in document["model"]["vocab"].items() if piece != "<mask>"}
    return transformers.NllbTokenizer(
        vocab=vocabulary, merges=[tuple(pair) for pair in document["model"]["merges"]],
        _spm_precompiled_charsmap=base64.b64decode(charsmap),
    )  # fmt: skip


def m2m100_tokenizer(opus, folder):
    # Few rules of a normaliser: the many of the default are read and written in seconds, and the others have them.
    rules = {"ａ": "a", "\u3000": " ", "\u00a0": " ", "ﬁ": "fi", "①": "1", "e\u0301": "é", "\t": " "}
    names = {text: " ".join(f"{ord(each):X}" for each in text) for text in [*rules, *rules.values()]}
    (folder / "rules.tsv").write_text("".join(f"{names[given]}\t{names[put]}\n" for given, put in rules.items()))
    model = opus.sentencepiece_of(
        LINES, model_type="bpe", vocab_size=151, normalization_rule_tsv=str(folder / "rules.tsv")
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *opus.pieces_of(model)]
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    return transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))


def imported(architecture, tokenizer, folder, extra):
    """Save a random model with a tokenizer as transformers does, and import it."""
    family = family_named(PLACE, {"architectures": [architecture]})
    tokenizer.save_pretrained(folder)
    theirs, _ = random_model(family, vocab_size=len(tokenizer) + extra)
    theirs.generation_config.num_beams, theirs.generation_config.forced_eos_token_id = 3, None
    theirs.save_pretrained(folder)
    found = translume.import_model(folder, folder.parent / "out")
    assert found.certificate.difference < 1e-4
    return theirs.eval(), load(folder.parent / "out")


@torch.no_grad()
def round_trip(tmp_path, tokenizer, theirs, reads):
    """Export the imported model; compare logits, ids and a second import with the original."""
    assert translume.export(tmp_path / "out", "huggingface", tmp_path / "back").difference < 1e-4
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    source = torch.tensor([reads.encode(LINES[-1])])
    given = {"input_ids": source, "decoder_input_ids": source}
    torch.testing.assert_close(again(**given).logits, theirs(**given).logits, rtol=0, atol=1e-5)
    written = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert type(written) is type(tokenizer)
    assert [written(text, split_special_tokens=True)["input_ids"][1:] for text in LINES] == [
        [*reads.encode(text), reads.specials.eos] for text in LINES
    ]
    translume.import_model(tmp_path / "back", tmp_path / "third")
    third = load(tmp_path / "third").checkpoint.source_tokenizer
    if reads.vocabulary.sentences is None:
        assert third.digest == reads.digest
    else:  # the digest depends on the order of the normaliser's rules
        assert third.vocabulary.sentences == reads.vocabulary.sentences
        assert (third.pieces(), third.specials, third.languages) == (reads.pieces(), reads.specials, reads.languages)


def fine_tuned(tmp_path, direction):
    """Train the imported model on a few lines; the last loss must be less than the first."""
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES[-3:]), encoding="utf-8")
    lines = str(tmp_path / "lines")
    config = Config.build(
        {
            "data": {
                "train_source": lines, "train_target": lines, "valid_source": lines, "valid_target": lines,
                "source_language": direction.get("from_", ""), "target_language": direction.get("to", ""),
            },
            "training": {
                "updates": 4, "validate_every": 1, "warmup_updates": 1, "learning_rate": 1e-3, "label_smoothing": 0.1,
                "label_smoothing_over": "text",
            },
        }
    )  # fmt: skip
    events = [*translume.train(config, tmp_path / "tuned", source=tmp_path / "out")]
    losses = [event.nll for event in events if isinstance(event, Validated)]
    assert losses[-1] < losses[0]
    assert load(tmp_path / "tuned").translate(LINES[-1], max_length=5, **direction).text is not None


@pytest.mark.parametrize(
    ("name", "architecture", "extra", "direction"),
    [
        ("bart", "BartForConditionalGeneration", 0, {}),
        ("mbart50", "MBartForConditionalGeneration", 0, {"from_": "de_DE", "to": "fr_XX"}),
        ("nllb", "M2M100ForConditionalGeneration", 2, {"from_": "deu_Latn", "to": "fra_Latn"}),
        ("m2m100", "M2M100ForConditionalGeneration", 108, {"from_": "de", "to": "fr"}),
    ],
)
def test_an_imported_model_reads_and_writes_the_same_tokens(opus, tmp_path, name, architecture, extra, direction):
    folder = tmp_path / "theirs"
    folder.mkdir()
    tokenizer = {
        "bart": lambda: bart_tokenizer(opus),
        "mbart50": lambda: wrapped(opus, "MBart50Tokenizer", "unigram", folder),
        "nllb": lambda: nllb_tokenizer(opus, folder),
        "m2m100": lambda: m2m100_tokenizer(opus, folder),
    }[name]()
    theirs, ours = imported(architecture, tokenizer, folder, extra)
    reads = ours.checkpoint.source_tokenizer
    standard = standard_json(reads)
    assert not re.search(r"\\\\K|\(\?>", standard)  # JavaScript has neither
    library, begin = LibraryTokenizer.from_str(standard), [*reads.languages.values()] if name == "bart" else []
    for text in HOSTILE:
        given = text.replace("\ud800", "\ufffd")  # half a surrogate pair cannot be encoded
        wanted = tokenizer(given, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if name == "mbart50" and "</s>" in text:  # its unigram model in transformers matches typed special tokens
            wanted = reads.encode(text)
            assert not {0, 1, 2} & set(wanted)
        assert reads.encode(text) == wanted, text
        assert library.encode(given).ids == [*begin, *wanted, reads.specials.eos]
        assert len(reads.spans_in(text)) == len(reads.encode(text))
        if reads.specials.unk not in wanted:
            assert reads.decode(wanted) == reads.normalise(text)
    assert generation_values(ours.checkpoint)["forced_bos_token_id"] == (begin[0] if begin else None)
    first = 0
    if direction:
        tokenizer.src_lang, first = direction["from_"], reads.languages[direction["to"]]
    text = "Two dogs play."
    written = theirs.generate(
        **tokenizer(text, return_tensors="pt"), forced_bos_token_id=first, max_length=17, length_penalty=0.0
    )
    found = ours.translate(text, max_length=15, length_penalty=0.0, max_length_ratio=99.0, split="never", **direction)
    assert [2, first, *found.hypotheses[0].ids] == written[0].tolist()[: 2 + len(found.hypotheses[0].ids)]
    round_trip(tmp_path, tokenizer, theirs, reads)
    if name == "nllb":
        fine_tuned(tmp_path, direction)


def test_pegasus_reads_its_sentencepiece_model(opus, tmp_path):
    """Older models have spiece.model without a tokenizer.json; 103 ids of the vocabulary stand before its pieces."""
    family, folder = family_named(PLACE, {"architectures": ["PegasusForConditionalGeneration"]}), tmp_path / "theirs"
    model = opus.sentencepiece_of(
        LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, vocab_size=110, normalization_rule_name="nfkc"
    )
    size = 103 + 3 + len(opus.pieces_of(model))
    theirs, _ = random_model(
        family, vocab_size=size, d_model=36, encoder_attention_heads=4, decoder_attention_heads=4, pad_token_id=0,
        eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    theirs.save_pretrained(folder)
    (folder / "spiece.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PegasusTokenizer"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    translume.import_model(folder, tmp_path / "out")
    ours = load(tmp_path / "out")
    reads = ours.checkpoint.source_tokenizer
    texts = [text for text in HOSTILE if "\ud800" not in text and "</s>" not in text]
    wanted = [tokenizer(text, split_special_tokens=True)["input_ids"] for text in texts]
    assert [[*reads.encode(text), 1] for text in texts] == wanted
    text = LINES[-1]
    written = theirs.eval().generate(**tokenizer(text, return_tensors="pt"), max_length=13, length_penalty=0.0)[0]
    found = ours.translate(text, beam=1, max_length=12, length_penalty=0.0, max_length_ratio=99.0, split="never")
    assert [0, *found.hypotheses[0].ids] == written.tolist()[: 1 + len(found.hypotheses[0].ids)]
    assert found.text == tokenizer.decode(written, skip_special_tokens=True)
    translume.export(tmp_path / "out", "huggingface", tmp_path / "back")
    assert translume.import_model(tmp_path / "back", tmp_path / "third").certificate.difference < 1e-4
    assert load(tmp_path / "third").checkpoint.source_tokenizer.digest == reads.digest


@pytest.mark.parametrize(
    ("architecture", "name", "known"),
    [
        ("MBartForConditionalGeneration", "MBartTokenizer", "'MBart50Tokenizer'"),
        ("M2M100ForConditionalGeneration", "SMALL100Tokenizer", "'NllbTokenizer' or 'M2M100Tokenizer'"),
    ],
)
def test_other_tokenizers_are_refused_by_name(tmp_path, architecture, name, known):
    family = family_named(PLACE, {"architectures": [architecture]})
    config = family.read_config(PLACE, {**SHAPE, "pad_token_id": 1, "eos_token_id": 2})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    with raises(SettingsError, f"{tmp_path}: tokenizer_class: found '{name}', expected {known}"):
        family.tokenizers(tmp_path, config)


def test_tags_after_the_text_are_refused(opus, tmp_path):
    """`legacy_behaviour` of NLLB puts the tag of the language after the text."""
    nllb_tokenizer(opus, tmp_path).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "legacy_behaviour": True}))
    family = family_named(PLACE, {"architectures": ["M2M100ForConditionalGeneration"]})
    config = family.read_config(PLACE, {**SHAPE, "pad_token_id": 1, "eos_token_id": 2})
    message = f"{tmp_path}: legacy_behaviour: found true, expected false: the tag of the language begins a text"
    with raises(SettingsError, message):
        family.tokenizers(tmp_path, config)
