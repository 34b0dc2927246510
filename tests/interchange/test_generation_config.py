"""generation_config.json decides the search as in transformers' `generate`, and what is left out is noted."""

import json
import shutil

import pytest
import torch

import translume
from translume.errors import SettingsError
from translume.interchange.huggingface.config import GENERATION_SETTINGS
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra: export)")

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
LINES = (
    "A man is riding a bicycle.", "Two dogs play in the snow...", "The children sing, and 1,234 people listen!",
    "Ein Mann fährt Fahrrad.", "Niemand kennt das Café.", "Is the little girl eating ice cream?",
)  # fmt: skip


@pytest.fixture(scope="module")
def plain(opus, tmp_path_factory):
    """A folder of T5 with random weights, whose generation_config.json names only the special ids."""
    folder = tmp_path_factory.mktemp("plain") / "t5"
    folder.mkdir()
    model = opus.sentencepiece_of(LINES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_name="identity")
    (folder / "spiece.model").write_bytes(model)
    tokenizer = transformers.T5Tokenizer.from_pretrained(str(folder), extra_ids=0)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=24, num_layers=1, num_heads=4, decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(5)
    network = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def changed(plain, folder, generation=None, config=None):
    """A copy of the folder with other values in its two files; None removes one, and generation=False the file."""
    shutil.copytree(plain, folder)
    for name, changes in (("generation_config.json", generation), ("config.json", config)):
        path = folder / name
        if changes is False:
            path.unlink()
            continue
        values = {**json.loads(path.read_text()), **(changes or {})}
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return folder


@pytest.fixture(scope="module")
def unchanged(plain, tmp_path_factory):
    """The texts of transformers with the settings of the plain folder."""
    return generated(changed(plain, tmp_path_factory.mktemp("before") / "theirs", {"max_length": 17}))


PIECE = 7
"""The id of an ordinary piece of the vocabulary."""


@pytest.mark.parametrize(
    ("generation", "config", "differs"),
    [
        ({"eos_token_id": [1, 45, 48, 15]}, {}, True),
        ({"eos_token_id": [45, 48]}, {}, True),
        ({"eos_token_id": 58}, {}, True),
        ({"eos_token_id": [1]}, {"eos_token_id": [1]}, False),
        ({"decoder_start_token_id": 3}, {}, True),
        ({"decoder_start_token_id": None, "bos_token_id": 5}, {}, True),
        ({"decoder_start_token_id": PIECE, "eos_token_id": [1, 45]}, {"decoder_start_token_id": PIECE}, True),
        ({}, {"decoder_start_token_id": None, "eos_token_id": None, "pad_token_id": None}, False),
        (False, {"decoder_start_token_id": PIECE, "num_beams": 2, "eos_token_id": [1, 48]}, True),
        ({"decoder_start_token_id": 1}, {}, True),
        ({}, {"architectures": None}, False),
        ({"num_beams": None, "suppress_tokens": [45, 15], "begin_suppress_tokens": [21]}, {"num_beams": 4}, True),
        ({"bad_words_ids": [[15], [58], [1]], "min_length": 5, "eos_token_id": [1, 48]}, {}, True),
        ({"max_new_tokens": 6, "min_new_tokens": 3}, {}, True),
        ({"no_repeat_ngram_size": 2, "num_beams": 3, "early_stopping": True, "length_penalty": 0.4}, {}, True),
        ({"num_beams": 3, "early_stopping": True, "length_penalty": 2.0, "eos_token_id": [1, 45, 15]}, {}, True),
    ],
)  # fmt: skip
def test_texts_are_those_of_generate(plain, unchanged, tmp_path, generation, config, differs):
    if generation is False:
        config = {"max_length": 17, **config}
    elif "max_new_tokens" not in generation:
        generation = {"max_length": 17, **generation}
    source = changed(plain, tmp_path / "theirs", generation, config)
    assert translume.import_model(source, tmp_path / "ours").notes == ()
    ours = load(tmp_path / "ours", device="cpu")
    specials = ours.checkpoint.target_tokenizer.specials
    assert specials.start_is_text == (specials.bos in (3, 5, PIECE))
    found = [ours.translate(text, max_length_ratio=99.0).text.replace("\ufffd", "") for text in LINES]
    assert found == generated(source)
    assert (found != unchanged) == differs
    assert ours.checkpoint.source_tokenizer.encode(LINES[0]) == ids_of(source, LINES[0])


def ids_of(folder, text):
    return transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]


def generated(folder):
    """The texts of transformers, without unknown tokens. Like ours, they have no padding."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    never = [[0], *(model.generation_config.bad_words_ids or [])]
    with torch.no_grad():
        rows = [model.generate(**tokenizer(text, return_tensors="pt"), bad_words_ids=never)[0] for text in LINES]
    return [tokenizer.decode(row[1:], skip_special_tokens=True).strip() for row in rows]


def test_every_setting_of_generate_is_known():
    theirs = transformers.GenerationConfig()
    assert {name for name in vars(theirs) if name != "_original_object_hash"} - GENERATION_SETTINGS == set()


def test_each_setting_that_is_left_out_is_noted(plain, tmp_path):
    left_out = {
        "exponential_decay_length_penalty": [5, 1.5], "forced_eos_token_id": 1, "repetition_penalty": 1.3,
        "renormalize_logits": True, "guidance_scale": 1.5, "stop_strings": ["x"], "do_sample": True, "top_p": 0.9,
        "encoder_no_repeat_ngram_size": 3, "forced_bos_token_id": 5, "num_return_sequences": 2,
        "bad_words_ids": [[5], [6, 7]], "invented": 1,
    }  # fmt: skip
    harmless = {"use_cache": False, "output_scores": True, "temperature": 1.0, "diversity_penalty": 0.0}
    source = changed(plain, tmp_path / "theirs", {**left_out, **harmless})
    path = source / "generation_config.json"
    names = [note.removeprefix(f"{path}: ") for note in translume.import_model(source, tmp_path / "ours").notes]
    assert sorted(names) == sorted([
        "exponential_decay_length_penalty: [5, 1.5] has no setting here and is left out",
        "forced_eos_token_id: 1 has no setting here and is left out",
        "repetition_penalty: 1.3 has no setting here that divides logits and is left out",
        "renormalize_logits: true has no setting here and is left out",
        "guidance_scale: 1.5 has no setting here and is left out",
        'stop_strings: ["x"] has no setting here and is left out',
        "do_sample: true has no setting here and is left out",
        "top_p: 0.9 has no setting here and is left out",
        "encoder_no_repeat_ngram_size: 3 has no setting here and is left out",
        "forced_bos_token_id: 5 has no setting here and is left out",
        "num_return_sequences: 2 has no setting here and is left out",
        "bad_words_ids: [[6, 7]] have no setting here and are left out",
        "invented is unknown here and is left out",
    ])  # fmt: skip


def test_an_unknown_type_of_model_is_named(plain, tmp_path):
    source = changed(plain, tmp_path / "theirs", {}, {"architectures": None, "model_type": "mbert"})
    with pytest.raises(SettingsError) as raised:
        translume.import_model(source, tmp_path / "ours")
    assert str(raised.value) == f"{source / 'config.json'}: model_type: found 'mbert'; did you mean 'mbart'?"


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens_are_refused_by_name(plain, tmp_path, special):
    source = changed(plain, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["foobar", "<SEP>"], special_tokens=special)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    with pytest.raises(SettingsError) as raised:
        translume.import_model(source, tmp_path / "ours")
    assert str(raised.value) == (
        f"{source}: added tokens: found '<SEP>', 'foobar', which transformers finds in texts, expected only pieces of "
        "the SentencePiece model"
    )


def test_marian_may_have_more_ids_than_its_vocabulary(opus, tmp_path):
    source = opus.write(tmp_path / "theirs", tokenizer={"normalization_rule_name": "identity"})
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(source)
    size = model.config.vocab_size
    model.resize_token_embeddings(size + 7)
    model.save_pretrained(source)
    assert translume.import_model(source, tmp_path / "ours").certificate.difference < 1e-3
    tokenizer = load(tmp_path / "ours", device="cpu").checkpoint.target_tokenizer
    assert (len(tokenizer), tokenizer.decode([size, size + 6])) == (size + 7, "")
    (source / "added_tokens.json").write_text(json.dumps({"foobar": size}))
    with pytest.raises(SettingsError, match="found 'foobar', which transformers finds in texts"):
        translume.import_model(source, tmp_path / "other")
