"""Families of transformers with tokenizers of their own, for families.py: random weights, small, as their folders are.

Each function writes its tokenizer into `folder` and returns the model, and the folders of both tokenizers if the
folder has none.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

SIZE = 4000
BART = {
    "d_model": 96, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 6, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 160, "decoder_ffn_dim": 160, "max_position_embeddings": 256, "forced_eos_token_id": None,
}  # fmt: skip
BERT = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 160,
    "max_position_embeddings": 256,
}  # fmt: skip
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 0, "eos_token_id": 0}
GEMMA = {
    "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 24,
    "num_key_value_heads": 2, "sliding_window": 8, "max_position_embeddings": 256, "query_pre_attn_scalar": 24,
    "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0,
}  # fmt: skip
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
Built = tuple[Any, tuple[Path, ...]]


def trained(texts: Iterable[str], before: Any, special: Sequence[str], *, kind: str = "BPE", **options: Any) -> Any:
    """Return the object of a model of the library `tokenizers`, trained on texts."""
    from tokenizers import Tokenizer, models, trainers

    end = {"end_of_word_suffix": options["end_of_word_suffix"]} if "end_of_word_suffix" in options else {}
    library = Tokenizer(models.BPE(**end) if kind == "BPE" else models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = before
    trainer = trainers.BpeTrainer if kind == "BPE" else trainers.WordPieceTrainer
    words: dict[str, Any] = {"vocab_size": SIZE, "special_tokens": [*special], "show_progress": False, **options}
    library.train_from_iterator(texts, trainer(**words))
    return json.loads(library.to_str())["model"]


def byte_level(lines: Sequence[str], special: Sequence[str]) -> Any:
    from tokenizers import pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), special, initial_alphabet=alphabet)


def write_byte_level(folder: Path, lines: Sequence[str], special: Sequence[str], kind: str) -> int:
    """Write vocab.json and merges.txt, as before tokenizer.json; return the number of tokens."""
    folder.mkdir(exist_ok=True)
    model = byte_level(lines, special)
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return len(model["vocab"])


def write_word_pieces(folder: Path, lines: Sequence[str]) -> int:
    from tokenizers import pre_tokenizers

    folder.mkdir(exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    lower = [line.lower() for line in lines]
    vocabulary = trained(lower, pre_tokenizers.BertPreTokenizer(), special, kind="WordPiece")["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(vocabulary, key=vocabulary.get)))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    return len(vocabulary)


def word_merges(texts: Sequence[Sequence[str]], special: Sequence[str]) -> Any:
    """Return a model of the words of texts, whose last pieces end with `</w>`."""
    from tokenizers import pre_tokenizers

    joined = [" ".join(words) for words in texts]
    return trained(joined, pre_tokenizers.WhitespaceSplit(), special, end_of_word_suffix="</w>")


def sentencepiece(lines: Sequence[str], **options: Any) -> bytes:
    from sentencepiece import SentencePieceTrainer

    written = io.BytesIO()
    values = {"vocab_size": SIZE, "minloglevel": 2, "character_coverage": 0.9995, "hard_vocab_limit": False} | options
    SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=written, **values)
    return written.getvalue()


def pair(encoder: dict[str, Any], decoder: dict[str, Any], kinds: tuple[str, str], ids: dict[str, int]) -> Any:
    import transformers

    sides = [
        transformers.AutoConfig.for_model(kind, **each) for kind, each in zip(kinds, (encoder, decoder), strict=True)
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sides)
    for name, value in ids.items():
        setattr(config, name, value)
    return transformers.EncoderDecoderModel(config)


def bert2bert(folder: Path, lines: Sequence[str]) -> Built:
    sizes = {**BERT, "vocab_size": write_word_pieces(folder, lines)}
    ids = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return pair(sizes, sizes, ("bert", "bert"), ids), ()


def roberta2roberta(folder: Path, lines: Sequence[str]) -> Built:
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    sizes = {**BERT, **ids, "vocab_size": write_byte_level(folder, lines, [*FAIRSEQ, "<mask>"], "RobertaTokenizer")}
    return pair(sizes, sizes, ("roberta", "roberta"), {"decoder_start_token_id": 0, **ids}), ()


def bert2gpt2(folder: Path, lines: Sequence[str]) -> Built:
    folders = folder.with_name("encoder"), folder.with_name("decoder")
    encoder = {**BERT, "vocab_size": write_word_pieces(folders[0], lines)}
    decoder = {**GPT2, "vocab_size": write_byte_level(folders[1], lines, ["<|endoftext|>"], "GPT2Tokenizer")}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return pair(encoder, decoder, ("bert", "gpt2"), ids), folders


def write_plain(folder: Path, lines: Sequence[str]) -> int:
    """Write a tokenizer.json of no special class, which ends a text with EOS; return the number of tokens."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    model = byte_level(lines, FAIRSEQ)
    library = Tokenizer(models.BPE(model["vocab"], [tuple(each) for each in model["merges"]]))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names).save_pretrained(folder)
    return len(model["vocab"])


def t5gemma(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    size = write_plain(folder, lines)
    sizes = {**GEMMA, "vocab_size": size}
    config = transformers.T5GemmaConfig(encoder=sizes, decoder=sizes, vocab_size=size)
    return transformers.T5GemmaForConditionalGeneration(config), ()


def write_gemma(folder: Path, lines: Sequence[str]) -> int:
    """Write a GemmaTokenizer, which begins a text with `<bos>` and ends none; return the number of tokens."""
    import transformers
    from tokenizers import pre_tokenizers

    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    spaces = pre_tokenizers.Split(" ", "merged_with_previous")
    spaced = [line.replace(" ", "\u2581") for line in lines]
    model = trained(spaced, pre_tokenizers.Sequence([spaces]), special)
    merges = [tuple(each) for each in model["merges"]]
    tokenizer = transformers.GemmaTokenizer(vocab=model["vocab"], merges=merges)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def t5gemma2(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    tower = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "image_size": 4, "patch_size": 2}  # fmt: skip
    ids = {"vocab_size": write_gemma(folder, lines), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    sizes = {**GEMMA, **ids, "sliding_window_pattern": 3, "rope_parameters": rope}
    encoder = {"text_config": sizes, "vision_config": tower, "mm_tokens_per_image": 4, "eoi_token_index": 300}
    config = transformers.T5Gemma2Config(encoder=encoder, decoder=sizes)
    return transformers.T5Gemma2ForConditionalGeneration(config), ()


def fsmt(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    from translume.text.word_rules import Moses

    languages = ["en", "de"]
    words = [[Moses(each, lowercase=False).words(line) for line in lines] for each in languages]
    model = word_merges(words[0] + words[1], FAIRSEQ)
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in model["merges"]))
    sizes = []
    for file, leave_out in (("vocab-src.json", 0), ("vocab-tgt.json", 40)):
        pieces = sorted(model["vocab"], key=model["vocab"].get)[: len(model["vocab"]) - leave_out]
        (folder / file).write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
        sizes.append(len(pieces))
    (folder / "tokenizer_config.json").write_text(json.dumps({"langs": languages, "model_max_length": 250}))
    vocabularies = {"src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1], "tie_word_embeddings": False}
    return transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**vocabularies, **BART)), ()


def blenderbot_small(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    from translume.text.word_rules import Blenderbot

    special = ["__null__", "__start__", "__end__", "__unk__"]
    model = word_merges([Blenderbot(lowercase=True).words(line) for line in lines], [])
    end = "</w>"
    pieces = [each.removesuffix(end) if each.endswith(end) else f"{each}@@" for each in model["vocab"]]
    ids = {piece: id_ for id_, piece in enumerate(dict.fromkeys([*special, *pieces]))}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BlenderbotSmallTokenizer"}')
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.BlenderbotSmallConfig(vocab_size=len(ids), **marks, **BART)
    return transformers.BlenderbotSmallForConditionalGeneration(config), ()


def blenderbot(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    size = write_plain(folder, lines)  # BlenderbotTokenizer of transformers 5 ends no text
    marks = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = transformers.BlenderbotConfig(vocab_size=size, scale_embedding=True, **marks, **BART)
    return transformers.BlenderbotForConditionalGeneration(config), ()


def led(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    size = write_byte_level(folder, lines, [*FAIRSEQ, "<mask>"], "LEDTokenizer")
    lengths = {"max_encoder_position_embeddings": 512, "max_decoder_position_embeddings": 256}
    config = transformers.LEDConfig(vocab_size=size, attention_window=[4, 8, 4], **lengths, **BART)
    return transformers.LEDForConditionalGeneration(config), ()


def plbart(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    (folder / "sentencepiece.bpe.model").write_bytes(sentencepiece(lines))
    file = str(folder / "sentencepiece.bpe.model")
    tokenizer = transformers.PLBartTokenizer(file, language_codes="base", src_lang="python")
    tokenizer.save_pretrained(folder)
    start = tokenizer.lang_code_to_id["__en_XX__"]
    config = transformers.PLBartConfig(vocab_size=tokenizer.vocab_size, decoder_start_token_id=start, **BART)
    return transformers.PLBartForConditionalGeneration(config), ()


def pegasus(folder: Path, lines: Sequence[str]) -> Built:
    import transformers

    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    (folder / "spiece.model").write_bytes(sentencepiece(lines, **options))
    tokenizer = transformers.PegasusTokenizer.from_pretrained(str(folder))
    tokenizer.save_pretrained(folder)
    marks = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "decoder_start_token_id": 0}
    config = transformers.PegasusConfig(vocab_size=len(tokenizer), **marks, **BART)
    return transformers.PegasusForConditionalGeneration(config), ()


def marian(folder: Path, lines: Sequence[str]) -> Built:
    import transformers
    from sentencepiece import SentencePieceProcessor

    content = sentencepiece(lines)
    for file in ("source.spm", "target.spm"):
        (folder / file).write_bytes(content)
    found = SentencePieceProcessor(model_proto=content)
    pieces = ["</s>", "<unk>", *(found.id_to_piece(each) for each in range(3, len(found))), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    tokenizer = transformers.MarianTokenizer(**{name: str(folder / file) for name, file in files.items()})
    tokenizer.save_pretrained(folder)
    last = len(pieces) - 1
    marks = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0}
    config = transformers.MarianConfig(vocab_size=len(pieces), scale_embedding=True, **marks, **BART)
    return transformers.MarianMTModel(config), ()


OWN_FAMILIES: dict[str, Callable[[Path, Sequence[str]], Built]] = {
    "marian": marian, "pegasus": pegasus, "fsmt": fsmt, "plbart": plbart, "blenderbot": blenderbot,
    "blenderbot-small": blenderbot_small, "bert2bert": bert2bert, "roberta2roberta": roberta2roberta,
    "bert2gpt2": bert2gpt2, "t5gemma": t5gemma, "t5gemma2": t5gemma2, "led": led,
}  # fmt: skip


def write_own(folder: Path, family: str, lines: Sequence[str]) -> tuple[Path, ...]:
    """Save a model with random weights and its tokenizer; return the folders of separate tokenizers."""
    import torch

    folder.mkdir()
    torch.manual_seed(1)
    model, folders = OWN_FAMILIES[family](folder, lines)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.eval().save_pretrained(folder)
    return folders
