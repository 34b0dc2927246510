"""Folders of transformers with the files of their own tokenizers: the same ids, and text in gives the same text out."""

import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from tests.errors import raises
from tests.interchange.conftest import sentencepiece_of

import translume
from translume.data.batch import Ragged, padded_batch
from translume.errors import DataError, ModelFolderError, SettingsError
from translume.text.imported import HOSTILE
from translume.translator import load

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra: export)")
tokenizers = pytest.importorskip("tokenizers")

LINES = (
    "A man rides a bicycle.", "Two dogs play in the snow!", "The children sing, and 1,234 people (all of them) listen.",
    "Ein Mann fährt Rad.", 'Niemand kennt das Café; "wirklich"?', "It's the dogs' home-made «soup» : 12 %.",
)  # fmt: skip
TEXTS = (
    *LINES, *HOSTILE, "don't 'quote' `me` ''twice''", "a\nb\r\nc...", "x_y@-@z &amp; <b> | [c] — d…", "\x1c\x85",
)  # fmt: skip
BERT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 70,
}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 70, "bos_token_id": 0, "eos_token_id": 0}


def trained(model, before, trainer, **options):
    """The library's model of the lines, as JSON."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = before
    library.train_from_iterator(LINES, trainer(show_progress=False, **options))
    return json.loads(library.to_str())["model"]


def byte_level(special, size):
    pre = tokenizers.pre_tokenizers.ByteLevel
    trainer = tokenizers.trainers.BpeTrainer
    options = {"special_tokens": special, "vocab_size": size, "initial_alphabet": pre.alphabet()}
    return trained(tokenizers.models.BPE(), pre(add_prefix_space=False), trainer, **options)


def write_byte_level(folder, special, size, kind):
    """Write the files of a GPT-2 or RoBERTa before tokenizer.json, and return the number of tokens."""
    folder.mkdir(exist_ok=True)
    model = byte_level(special, size)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))
    return len(model["vocab"])


def write_word_pieces(folder, kind):
    folder.mkdir(exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    before = tokenizers.pre_tokenizers.BertPreTokenizer()
    model = tokenizers.models.WordPiece(unk_token="[UNK]")
    found = trained(model, before, tokenizers.trainers.WordPieceTrainer, special_tokens=special, vocab_size=110)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(found["vocab"], key=found["vocab"].get)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **kind}))
    return len(found["vocab"])


def pair(encoder, decoder, kinds, **ids):
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.AutoConfig.for_model(kinds[0], **encoder), transformers.AutoConfig.for_model(kinds[1], **decoder)
    )
    for name, value in ids.items():
        setattr(config, name, value)
    return transformers.EncoderDecoderModel(config)


def berts(folder):
    sizes = {**BERT, "vocab_size": write_word_pieces(folder, {})}
    return pair(sizes, sizes, ("bert", "bert"), decoder_start_token_id=2, eos_token_id=3, pad_token_id=0), ()


def robertas(folder):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes = {**BERT, **ids, "vocab_size": write_byte_level(folder, special, 300, {})}
    return pair(sizes, sizes, ("roberta", "roberta"), decoder_start_token_id=0, eos_token_id=2, pad_token_id=1), ()


def bert_and_gpt2(folder):
    folders = folder.with_name("bert"), folder.with_name("gpt2")
    encoder = {**BERT, "vocab_size": write_word_pieces(folders[0], {"tokenizer_class": "BertTokenizer"})}
    size = write_byte_level(folders[1], ["<|endoftext|>"], 290, {"tokenizer_class": "GPT2Tokenizer"})
    ids = {"decoder_start_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return pair(encoder, {**GPT2, "vocab_size": size}, ("bert", "gpt2"), **ids), folders


MERGES = ("t h", "th e</w>", "i n", "e r", "a n", "o f</w>", "r i", "in g</w>", "d e", "e n</w>", "a l", "al l</w>")
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128, "forced_eos_token_id": None,
}  # fmt: skip


def write_words(folder, first, special, build, *files):
    """Write merges, and vocabularies of the special tokens and of all pieces of the lines; return the sizes."""
    (folder / "merges.txt").write_text(first + "".join(f"{merge}\n" for merge in MERGES))
    for file in files:
        (folder / file).write_text(json.dumps({each: id_ for id_, each in enumerate(special)}))
    names = [str(folder / file) for file in (*files, "merges.txt")]
    pieces = sorted({piece for line in LINES for piece in build(*names).tokenize(line)} - {*special})
    sizes = []
    for number, file in enumerate(files):
        ids = {each: id_ for id_, each in enumerate([*special, *pieces[number:]])}
        (folder / file).write_text(json.dumps(ids))
        sizes.append(len(ids))
    return sizes


def blenderbot_small(folder):
    special = ["__null__", "__start__", "__end__", "__unk__"]
    kind = transformers.BlenderbotSmallTokenizer
    (size,) = write_words(folder, "#version: 0.2\n", special, kind, "vocab.json")
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.BlenderbotSmallConfig(vocab_size=size + 2, **ids, **BART)
    return transformers.BlenderbotSmallForConditionalGeneration(config), ()


def blenderbot(folder):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    size = write_byte_level(folder, special, 300, {"tokenizer_class": "BlenderbotTokenizer"})
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = transformers.BlenderbotConfig(**BART, **ids, vocab_size=size)
    return transformers.BlenderbotForConditionalGeneration(config), ()


def fsmt(folder):
    pytest.importorskip("sacremoses", reason="sacremoses is not installed (extra: moses)")
    kind = partial(transformers.FSMTTokenizer, ["en", "de"])
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    source, target = write_words(folder, "", special, kind, "vocab-src.json", "vocab-tgt.json")
    (folder / "tokenizer_config.json").write_text('{"langs": ["en", "de"], "model_max_length": 128}')
    sizes = {"src_vocab_size": source, "tgt_vocab_size": target, "tie_word_embeddings": False}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**sizes, **BART)), ()


def plbart(folder):
    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece_of([*LINES], vocab_size=70))
    values = {"tokenizer_class": "PLBartTokenizer", "language_codes": "base", "src_lang": "python"}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    size = len(transformers.AutoTokenizer.from_pretrained(folder, model_type="plbart").get_vocab())
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": size - 2}  # `__en_XX__`
    config = transformers.PLBartConfig(vocab_size=size + 1, **ids, **BART)
    return transformers.PLBartForConditionalGeneration(config), ()


FAMILIES = (berts, robertas, bert_and_gpt2, blenderbot, blenderbot_small, fsmt, plbart)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda build: build.__name__)
def imported(request, tmp_path_factory):
    """A folder, its model, the folders of its tokenizers, and the import."""
    folder = tmp_path_factory.mktemp(request.param.__name__) / "theirs"
    folder.mkdir()
    torch.manual_seed(5)
    model, folders = request.param(folder)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    out = folder.with_name("ours")
    assert translume.import_model(folder, out, vocabularies=folders).certificate.difference < 1e-4
    return folder, model, folders, load(out, dtype="fp32")


def theirs_of(folder, folders):
    """Their tokenizers of source and target."""
    found = [transformers.AutoTokenizer.from_pretrained(each) for each in folders or (folder,)]
    return found[0], found[-1]


def test_a_text_has_the_ids_of_the_original_tokenizer(imported):
    folder, _, folders, ours = imported
    peer, own = theirs_of(folder, folders)[0], ours.checkpoint.source_tokenizer
    for text in TEXTS:
        wanted = peer(text, split_special_tokens=True)["input_ids"]
        assert [*own.languages.values(), *own.encode(text), *own.specials.source_end] == wanted


@torch.no_grad()
def test_texts_of_a_beam_search_are_those_of_generate(imported):
    folder, model, folders, ours = imported
    reads, writes = theirs_of(folder, folders)
    options = {"strategy": "beam", "beam": 3, "max_length": 15, "max_length_ratio": 99.0, "length_penalty": 0.0}
    plain = str.maketrans("", "", "\ufffd@")  # an unknown piece, and the end of half a word
    specials = ours.checkpoint.target_tokenizer.specials
    size = len(writes.get_vocab())  # ids beyond it mean nothing there
    silent = ours.checkpoint.target_tokenizer.vocabulary.silent
    never = {specials.pad, specials.bos, *(id_ for id_ in silent if id_ >= size)} - {specials.eos}
    for text in LINES:
        given = {name: torch.tensor([reads(text)[name]]) for name in ("input_ids", "attention_mask")}
        search = {"num_beams": 3, "max_length": 16, "length_penalty": 0.0, "early_stopping": "never"}
        written = model.generate(**given, **search, bad_words_ids=[[id_] for id_ in never] or None)[0]
        found = ours.translate(text, split="never", **options)
        assert written.tolist()[1 : 1 + len(found.hypotheses[0].ids)] == list(found.hypotheses[0].ids)
        text = writes.decode(written, skip_special_tokens=True)
        assert found.text.translate(plain).split() == text.translate(plain).split()


@pytest.mark.parametrize(
    ("build", "file", "content", "kind", "message"),
    [
        (berts, "vocab.txt", None, ModelFolderError,
         "{folder}: no tokenizer, expected one of tokenizer.json, vocab.txt, merges.txt, sentencepiece.bpe.model"),
        (berts, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + "\n".join(map(str, range(200))), SettingsError,
         "{folder}: tokenizer: ids of the vocabulary are not below 110"),
        (blenderbot_small, "merges.txt", None, ModelFolderError,
         "{folder}/merges.txt: no such file, expected one as transformers saves it"),
        (blenderbot_small, "merges.txt", "a b c d\n", DataError,
         "{folder}/merges.txt: expected the merges of subword-nmt, two pieces in each line"),
        (blenderbot_small, "vocab.json", '{"a": 0}', DataError,
         "{folder}/vocab.json: lacks __unk__, which every vocabulary of BlenderbotSmallForConditionalGeneration has"),
        (plbart, "sentencepiece.bpe.model", None, ModelFolderError,
         "{folder}/sentencepiece.bpe.model: no such file, expected one as PLBartTokenizer saves it"),
        (plbart, "sentencepiece.bpe.model", "junk", DataError,
         "{folder}/sentencepiece.bpe.model: damaged, or not a model of SentencePiece"),
        (plbart, "tokenizer_config.json", '{"tokenizer_class": "PLBartTokenizer", "src_lang": "pyton"}', SettingsError,
         "{folder}/tokenizer_config.json: src_lang: found 'pyton'; did you mean 'python'?"),
        (plbart, "tokenizer_config.json", '{"language_codes": "all"}', SettingsError,
         "{folder}/tokenizer_config.json: language_codes: found 'all'; known: base, multi"),
        (plbart, "tokenizer_config.json", '{"src_lang": [5]}', SettingsError,
         "{folder}/tokenizer_config.json: src_lang: found '[5]'; known: java, python, en_XX"),
        (fsmt, "tokenizer_config.json", '{"langs": ["en"]}', SettingsError,
         '{folder}/tokenizer_config.json: langs: found ["en"], expected two languages'),
        (fsmt, "vocab-tgt.json", json.dumps({"<unk>": 0, **{str(each): each for each in range(1, 99)}}), DataError,
         "{folder}/vocab-tgt.json: found 99 tokens, expected at most 76 by config.json"),
        (bert_and_gpt2, "README.md", "", SettingsError,
         "{folder}/config.json: decoder.vocab_size: found 290, expected 110, that of the encoder: the folder has one "
         "tokenizer; --vocabs ENCODER DECODER names folders of two"),
    ],
)  # fmt: skip
def test_damaged_files_are_named_and_nothing_is_written(tmp_path, build, file, content, kind, message):
    folder = tmp_path / "theirs"
    folder.mkdir()
    build(folder)[0].save_pretrained(folder)
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with raises(kind, message.format(folder=folder)):
        translume.import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_tokenizers_of_their_own_are_for_pairs_and_have_the_tokens_that_begin_and_end_a_source(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    model, folders = bert_and_gpt2(folder)
    model.save_pretrained(folder)
    message = f"{folders[1]}: lacks cls_token, sep_token or pad_token, expected a tokenizer of BERT or RoBERTa"
    with raises(SettingsError, message):
        translume.import_model(folder, tmp_path / "ours", vocabularies=[folders[1], folders[1]])


def test_without_sacremoses_a_model_with_the_rules_of_moses_is_refused_in_one_line(tmp_path, monkeypatch):
    folder = tmp_path / "theirs"
    folder.mkdir()
    fsmt(folder)[0].save_pretrained(folder)
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    message = "tokenizer: needs sacremoses, which is not installed; pip install 'translume[moses]'"
    with raises(SettingsError, message):
        translume.import_model(folder, tmp_path / "ours")


@pytest.mark.parametrize("imported", [blenderbot_small, fsmt], indirect=True)
def test_words_and_their_merges_are_exported_and_imported_again(imported, tmp_path):
    folder, _, _, ours = imported
    assert translume.export(folder.with_name("ours"), "huggingface", tmp_path / "back").difference < 1e-4
    translume.import_model(tmp_path / "back", tmp_path / "third")
    third = load(tmp_path / "third").checkpoint
    assert third.source_tokenizer.digest == ours.checkpoint.source_tokenizer.digest
    assert third.target_tokenizer.digest == ours.checkpoint.target_tokenizer.digest


@pytest.mark.parametrize("imported", [plbart], indirect=True)
def test_a_tag_after_eos_is_read_in_training_and_refused_where_it_cannot_be(imported, tmp_path):
    folder, _, _, ours = imported
    tokenizer = ours.checkpoint.source_tokenizer
    tag = len(tokenizer) - 4  # `__python__`, before `__en_XX__`, `<mask>` and an id without a piece
    assert tokenizer.specials.source_end == (2, tag)
    ragged = Ragged(np.array([7, 8, 9]), np.array([0, 2]), np.array([2, 1]))
    batch = padded_batch(ragged, ragged, tokenizer, tokenizer, (1, 2))
    assert batch.source.tolist() == [[7, 8, 2, tag], [9, 2, tag, 1]]
    assert batch.source_mask.tolist() == [[True] * 4, [True, True, True, False]]
    for target, name in (("ctranslate2", "CTranslate2"), ("web", "web")):
        with raises(SettingsError, f"tokenizer: found tokens after the EOS of a source, expected EOS last for {name}"):
            translume.export(folder.with_name("ours"), target, tmp_path / target)
