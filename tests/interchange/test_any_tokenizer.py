"""Models of transformers come in with any tokenizer.json, and return to it."""

import json

import pytest
import torch
from tests.errors import raises
from tests.text.test_library import LINES, SPECIAL, write
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors

import translume
from translume.errors import SettingsError
from translume.text.imported import HOSTILE
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")

SIZES = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 128, "forced_eos_token_id": None,
}  # fmt: skip


def saved(folder, architecture, kind, begin=(), end=("</s>",)):
    """Save a random model with a tokenizer that adds these tokens around a text, as transformers does."""
    folder.mkdir()
    library = write(folder / "unused.json", kind)
    codes = {"mbart": ["de_DE", "en_XX"], "m2m_100": ["__de__", "__en__"]}.get(architecture, [])
    library.add_special_tokens(codes)
    around = [*begin, *end]
    library.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end], special_tokens=[(each, library.token_to_id(each)) for each in around]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 24, "num_layers": 1} if architecture == "t5" else SIZES
    config = transformers.AutoConfig.for_model(
        architecture, vocab_size=len(library.get_vocab()) + 3, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=1 if architecture in ("t5", "marian") else 2, **sizes,
    )  # fmt: skip
    torch.manual_seed(7)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    (folder / "unused.json").unlink()
    return tokenizer, model


@pytest.mark.parametrize(
    ("architecture", "kind", "begin", "direction"),
    [
        ("t5", "fallback", (), {"to": "de"}),
        ("t5", "wordpiece", (), {"to": "de"}),
        ("bart", "bytes", ("<s>",), {}),
        ("blenderbot", "bytes", (), {}),  # exported as Pegasus, whose class cannot read its tokenizer
        ("marian", "wordpiece", (), {}),
        ("mbart", "unigram", ("en_XX",), {"from_": "en_XX", "to": "de_DE"}),
        ("m2m_100", "suffix", ("__en__",), {"from_": "en", "to": "de"}),
    ],
)
def test_ids_and_greedy_texts_are_those_of_transformers(tmp_path, architecture, kind, begin, direction):
    theirs, model = saved(tmp_path / "in", architecture, kind, begin)
    assert translume.import_model(tmp_path / "in", tmp_path / "out").certificate.difference < 1e-4
    ours = load(tmp_path / "out", dtype="fp32")
    reads = ours.checkpoint.source_tokenizer
    assert reads.settings.kind == "library"
    for text in (*LINES, *HOSTILE):
        if "</s>" not in text:
            assert reads.encode(text) == theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    tags = ours.checkpoint.config.model.target_tags
    first = reads.languages[direction.get("to", "")] if tags else None
    never = sorted({0, 1, 3} - {reads.specials.eos})
    for text in LINES:
        given = theirs(text, return_tensors="pt")
        if architecture == "t5":  # as MADLAD-400, the tag of the target's language begins the source
            given = {"input_ids": torch.tensor([[4, *given["input_ids"][0].tolist()]])}
        written = model.generate(
            **given, do_sample=False, num_beams=1, max_new_tokens=12, forced_bos_token_id=first,
            bad_words_ids=[[each] for each in never],
        )  # fmt: skip
        found = ours.translate(
            text, beam=1, max_length=12 - tags, max_length_ratio=99.0, split="never", suppress=never, **direction
        )
        assert found.text == theirs.decode(written[0], skip_special_tokens=True)
    translume.export(tmp_path / "out", "huggingface", tmp_path / "back")
    assert translume.import_model(tmp_path / "back", tmp_path / "third").certificate.difference < 1e-4
    third = load(tmp_path / "third").checkpoint.source_tokenizer
    assert [third.encode(text) for text in (*LINES, *HOSTILE)] == [reads.encode(text) for text in (*LINES, *HOSTILE)]


def test_the_vocabulary_of_ctranslate2_has_the_strings_of_its_tokenizer_json(tmp_path):
    saved(tmp_path / "in", "marian", "wordpiece")
    translume.import_model(tmp_path / "in", tmp_path / "out")
    translume.export(tmp_path / "out", "ctranslate2", tmp_path / "exported")
    library = LibraryTokenizer.from_file(str(tmp_path / "exported/tokenizer.json"))
    pieces = json.loads((tmp_path / "exported/shared_vocabulary.json").read_text())
    assert [library.id_to_token(id_) for id_ in range(library.get_vocab_size())] == pieces[: library.get_vocab_size()]
    assert pieces[: len(SPECIAL)] == SPECIAL
    ours = load(tmp_path / "out").checkpoint.source_tokenizer
    assert [library.encode(line).ids for line in LINES] == [[*ours.encode(line), 2] for line in LINES]


def test_a_text_that_does_not_end_with_eos_is_refused(tmp_path):
    saved(tmp_path / "in", "marian", "words", ("<s>", "<2de>"), ())
    with raises(
        SettingsError,
        f"{tmp_path / 'in'}: post_processor: found the ids [0] before a text and 4 after it, expected at most one id "
        "and 2",
    ):
        translume.import_model(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
