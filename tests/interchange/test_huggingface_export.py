"""Exports to transformers: weights, tokenizer and translations."""

from dataclasses import replace

import pytest
from tests.errors import raises

from translume.checkpoint import read_config, save_model
from translume.config import DecodingSettings, SoftmaxSettings, TokenizerSettings
from translume.errors import SettingsError
from translume.interchange.export import export
from translume.interchange.huggingface.tokenizer import library_tokenizer
from translume.interchange.importing import import_model
from translume.text import train_tokenizer
from translume.translator import load

from .conftest import SOURCES, random_checkpoint

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

TEXTS = [
    "A man is riding a bicycle.", "Ein Mann fährt Fahrrad, 1,234 mal!", "我很饿。 hello世界 <s> </s>",
    "naïve café ﬁne\u00a0x", "สวัสดีครับ", "a\u0301b  c\t d", "", "😀 ok 😀", "▁a", "x" * 200,
]  # fmt: skip


def checkpoint_of(**changes):
    decoding = DecodingSettings(strategy="greedy", max_length=17, max_length_ratio=99.0)
    return random_checkpoint(train_tokenizer(TokenizerSettings(size=401), TEXTS[:5]), decoding=decoding, **changes)


@pytest.mark.parametrize(("kind", "unknown"), [("bpe", "bytes"), ("bpe", "token"), ("unigram", "token")])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_exported_tokenizer_gives_the_same_ids_for_every_text(kind, unknown, lowercase):
    tokenizer = train_tokenizer(TokenizerSettings(kind=kind, unknown=unknown, lowercase=lowercase, size=401), TEXTS[:5])
    library = library_tokenizer(tokenizer)
    for text in TEXTS:
        assert library.encode(text).ids == [*tokenizer.encode(text), tokenizer.specials.eos]


@pytest.mark.parametrize(
    "changes",
    [{}, {"positions": "learned"}, {"norm": "post", "activation": "gelu", "scale_embeddings": False}],
    ids=["pegasus", "learned-positions", "marian-unscaled-gelu"],
)
def test_an_export_translates_like_the_model(tmp_path, changes):
    save_model(tmp_path / "model", checkpoint_of(**changes))
    certificate = export(tmp_path / "model", "huggingface", tmp_path / "out")
    assert certificate.difference < 1e-4
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = load(tmp_path / "model", device="cpu")
    for text in (text for text in TEXTS[:5] if text):
        assert tokenizer(text)["input_ids"][:-1] == ours.checkpoint.source_tokenizer.encode(text)
        written = theirs.generate(**tokenizer(text, return_tensors="pt"), num_beams=1, do_sample=False, max_length=18)
        (wanted,) = ours.translate(text).hypotheses
        assert written[0].tolist()[1:] == list(wanted.ids)


def test_an_export_keeps_the_settings_of_the_search_that_transformers_has(tmp_path):
    settings = {"strategy": "beam", "beam": 3, "stop": "first", "no_repeat_ngram": 2, "min_length": 7, "max_length": 19}
    checkpoint = checkpoint_of()
    config = checkpoint.config.model_copy(update={"decoding": DecodingSettings(**settings, suppress=(9,))})
    save_model(tmp_path / "model", replace(checkpoint, config=config))
    export(tmp_path / "model", "huggingface", tmp_path / "out")
    back = import_model(tmp_path / "out", tmp_path / "back")
    assert not back.notes
    found = read_config(tmp_path / "back").decoding
    assert {name: getattr(found, name) for name in settings if name != "max_length"} == {
        name: value for name, value in settings.items() if name != "max_length"
    }
    assert found.suppress == (9,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "pre", "positions": "rotary"},
         "model.positions: found 'rotary', expected 'sinusoidal' or 'learned' for PegasusForConditionalGeneration"),
        ({"norm": "post", "positions": "learned"},
         "model.positions: found 'learned', expected 'sinusoidal' for MarianMTModel"),
        ({"head": SoftmaxSettings(tie="none")},
         "model.head.tie: found 'none', expected 'all' for PegasusForConditionalGeneration"),
        ({"norm": "pre", "decoder_mixing": "ssru"},
         "model.decoder_mixing: found 'ssru', expected 'attention' for PegasusForConditionalGeneration"),
        ({"norm": "post", "decoder_mixing": "ssru"},
         "model.decoder_mixing: found 'ssru', expected 'attention' for MarianMTModel"),
        ({"head_width": 32},
         "model.head_width: found 32, expected 0 for PegasusForConditionalGeneration, whose heads divide the width"),
        ({"positions": "relative", "normalization": "rms", "bias": False, "embedding_norm": True},
         "model.embedding_norm: found True, expected False for T5ForConditionalGeneration"),
    ],
)  # fmt: skip
def test_settings_unsupported_by_transformers_are_refused_by_name(tmp_path, changes, message):
    save_model(tmp_path / "model", checkpoint_of(**changes))
    with raises(SettingsError, message):
        export(tmp_path / "model", "huggingface", tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_an_unsupported_tokenizer_is_refused():
    tokenizer = train_tokenizer(TokenizerSettings(kind="wordpiece", size=401), TEXTS[:5])
    message = (
        "tokenizer.kind: found 'wordpiece' with unknown = 'bytes', "
        "expected 'bpe', or 'unigram' with unknown = 'token', for huggingface"
    )
    with raises(SettingsError, message):
        library_tokenizer(tokenizer)


@pytest.mark.parametrize("separate", [False, True], ids=["one-vocabulary", "two-vocabularies"])
def test_an_imported_opus_model_is_exported_with_its_tokenizer(opus, tmp_path, separate):
    folder = opus.write(tmp_path / "theirs", separate=separate, tokenizer={"normalization_rule_name": "identity"})
    import_model(folder, tmp_path / "model")
    assert export(tmp_path / "model", "huggingface", tmp_path / "back").difference < 1e-4
    texts, back = [*SOURCES, "Ein  Wort, 日本"], tmp_path / "back"
    first, again = (transformers.AutoTokenizer.from_pretrained(each) for each in (folder, back))
    assert type(again) is type(first)
    for argument in ("text", "text_target"):
        assert again(**{argument: texts}).input_ids == first(**{argument: texts}).input_ids
    ours = load(tmp_path / "model").translate_all(texts, split="never")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(back).eval()
    found = theirs.generate(**again(texts, return_tensors="pt", padding=True), max_length=53)
    assert again.batch_decode(found, skip_special_tokens=True) == [each.text for each in ours]
    assert import_model(back, tmp_path / "third").certificate.difference < 1e-4


def test_two_vocabularies_without_sentencepiece_are_refused(tmp_path):
    settings = TokenizerSettings(kind="bpe", size=401, unknown="token")
    sides = [train_tokenizer(settings, texts) for texts in (TEXTS, TEXTS[::2])]
    save_model(tmp_path / "model", random_checkpoint(*sides, norm="post", head=SoftmaxSettings(tie="target")))
    with raises(SettingsError, "tokenizer.shared: found false, expected true for huggingface"):
        export(tmp_path / "model", "huggingface", tmp_path / "out")
