"""Families of transformers in and out: one row each, with random weights and tokenizers trained on real lines.

Columns: parameters; largest |Δ| of encoder states and of logits against transformers in fp32; texts of a beam search
that are equal; lines with the same ids as from transformers, and as from SentencePiece (hostile texts after the `+`);
|Δ log p| of the model exported to transformers, and to CTranslate2; difference of the engine from the plain model in
fp32 and int8, in nats. Mixtures of experts (switch, nllb-moe) are not exported and not in the engine: nan.

    python benchmarks/families.py [--data FOLDER] [--families t5,mt5] [--lines 10000] [--texts 200] [--json]
"""

import argparse
import gzip
import io
import json
import math
import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
DATA = Path(os.environ.get("TRANSLUME_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
FILES = ("tatoeba_en_de/train.de", "tatoeba_en_fr/train.fr", "tatoeba_en_zh/train.zh", "tatoeba_en_zh/train.en")
ODD = "áéＡﬁ½…\u00ad\u200b\u0301\u0308\u1100\u1161\u11a8ｶﾞ㍍😀▁\u3000\u00a0\u2028\ufffd\u00a8\t .,abcdehimno"
UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
T5_FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...] | None]] = {
    "t5": ("T5", {}, ()),
    "t5-v1.1": ("T5", UNTIED, ()),
    "mt5": ("MT5", UNTIED, tuple(f"▁<extra_id_{number}>" for number in reversed(range(100)))),
    "madlad-400": ("T5", UNTIED, ("<2de>", "<2fr>", "<2zh>")),
    "byt5": ("T5", UNTIED, None),
    "switch": ("SwitchTransformers", {"num_experts": 8, "expert_capacity": 7, "num_sparse_decoder_layers": 1}, ()),
}
"""Class, settings and symbols of the SentencePiece model of each family."""
BART_FAMILIES: dict[str, tuple[str, int, dict[str, str]]] = {
    "bart": ("Bart", 0, {}),
    "mbart-50": ("MBart", 0, {"from_": "en_XX", "to": "de_DE"}),
    "nllb-200": ("M2M100", 2, {"from_": "eng_Latn", "to": "deu_Latn"}),
    "m2m-100": ("M2M100", 108, {"from_": "en", "to": "de"}),
    "nllb-moe": ("NllbMoe", 2, {"from_": "eng_Latn", "to": "deu_Latn"}),
}
"""Class, ids beyond the tokenizer's, and the direction that is translated."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of a family."""

    family: str
    parameters: int
    encoder: float
    logits: float
    texts: str
    ids_transformers: str
    ids_sentencepiece: str
    exported: float
    ctranslate2: float
    engine_fp32: float
    engine_int8: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    parser.add_argument("--families", default="t5,byt5" if SHORT else ",".join([*T5_FAMILIES, *BART_FAMILIES]))
    parser.add_argument("--lines", type=int, default=500 if SHORT else 10_000)
    parser.add_argument("--texts", type=int, default=10 if SHORT else 200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = read_lines(options.data, options.lines)
    rows = []
    for family in options.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asdict(measure(family, Path(folder), lines, options.texts)))
        if not options.json:
            print(" ".join(f"{name}={value:.1e}" if isinstance(value, float) else f"{name}={value}"
                           for name, value in rows[-1].items()), flush=True)  # fmt: skip
    if options.json:
        print(json.dumps({"rows": rows}))


def read_lines(data: Path, count: int) -> list[str]:
    """Return lines of several scripts, the same number of each file, mixed."""
    found: list[str] = []
    for name in FILES:
        path = data / name
        text = path.read_text() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
        lines = (text if isinstance(text, str) else text.decode()).splitlines()
        found += random.Random(1).sample(lines, -(-count // len(FILES)))
    random.Random(2).shuffle(found)
    return found[:count]


def hostile(count: int) -> Iterator[str]:
    """Yield texts of rare and combining characters. No special token is spelt in them."""
    draw = random.Random(3)
    for _ in range(count):
        yield "".join(draw.choice(ODD) if draw.random() < 0.7 else chr(draw.randrange(0x20, 0xD7FF)) for _ in range(17))


def write_t5(folder: Path, family: str, lines: list[str], **shape: int) -> None:
    """Save a T5 with random weights, and its tokenizer."""
    import sentencepiece
    import torch
    import transformers

    named, values, symbols = T5_FAMILIES[family]
    folder.mkdir()
    if symbols is None:
        tokenizer, size = transformers.ByT5Tokenizer(), 384
    else:
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=written, vocab_size=4000, pad_id=0, eos_id=1, unk_id=2,
            bos_id=-1, user_defined_symbols=list(symbols), minloglevel=2, character_coverage=0.9995,
            hard_vocab_limit=False,
        )  # fmt: skip
        (folder / "spiece.model").write_bytes(written.getvalue())
        extra = 0 if symbols else 100
        tokenizer = transformers.T5Tokenizer.from_pretrained(str(folder), extra_ids=extra)
        found = len(sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())) + extra
        size = -(-(found + 1) // 128) * 128
    usual = {"d_model": 96, "d_kv": 32, "d_ff": 160, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4}
    config = getattr(transformers, f"{named}Config")(
        vocab_size=size, decoder_start_token_id=0, **{**usual, **shape, **values}
    )
    torch.manual_seed(1)
    model = getattr(transformers, f"{named}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "relative" in name:
                parameter.copy_(torch.randn_like(parameter))
            if family == "switch":
                parameter.add_(torch.randn_like(parameter) * 0.03)
        if "tie_word_embeddings" in values:  # transformers 5 ties every new T5
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.2)
            model.all_tied_weights_keys.pop("lm_head.weight")
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    tokenizer.save_pretrained(folder)


def write_bart(folder: Path, family: str, lines: list[str], **shape: int) -> None:
    """Save a BART, mBART-50, NLLB-200 or M2M-100 with random weights, and its tokenizer."""
    import torch
    import transformers

    named, extra, _ = BART_FAMILIES[family]
    folder.mkdir()
    tokenizer = bart_tokenizer(lines) if family == "bart" else sentencepiece_tokenizer(folder, family, lines)
    tokenizer.save_pretrained(folder)
    sparse = {"num_experts": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 1} if family == "nllb-moe" else {}
    usual = {
        **sparse, "vocab_size": len(tokenizer) + extra, "d_model": 96, "encoder_layers": 3, "decoder_layers": 3,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 160, "decoder_ffn_dim": 160,
    }  # fmt: skip
    config = getattr(transformers, f"{named}Config")(decoder_start_token_id=2, **{**usual, **shape})
    torch.manual_seed(1)
    model = getattr(transformers, f"{named}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(folder)


def bart_tokenizer(lines: list[str]) -> Any:
    """Return a tokenizer of byte-level BPE."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    library.train_from_iterator(lines, trainer)
    model = json.loads(library.to_str())["model"]
    return transformers.BartTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def sentencepiece_tokenizer(folder: Path, family: str, lines: list[str]) -> Any:
    """Return the tokenizer of a family with languages, with a SentencePiece model of the lines."""
    import base64

    import sentencepiece
    import transformers

    written, path = io.BytesIO(), folder / "sentencepiece.bpe.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, vocab_size=4000, minloglevel=2,
        model_type="unigram" if family == "mbart-50" else "bpe", character_coverage=0.9995, hard_vocab_limit=False,
    )  # fmt: skip
    path.write_bytes(written.getvalue())
    if family == "m2m-100":
        model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(number) for number in range(3, len(model)))]
        (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
        return transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(path))
    name = "MBart50Tokenizer" if family == "mbart-50" else "NllbTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    found = getattr(transformers, name).from_pretrained(folder)
    if family == "mbart-50":
        return found
    document = json.loads(found.backend_tokenizer.to_str())
    charsmap = document["normalizer"]["normalizers"][0]["precompiled_charsmap"]
    return transformers.NllbTokenizer(
        vocab={piece: id_ for piece, id_ in document["model"]["vocab"].items() if piece != "<mask>"},
        merges=[tuple(pair) for pair in document["model"]["merges"]],
        _spm_precompiled_charsmap=base64.b64decode(charsmap),
    )


def measure(family: str, folder: Path, lines: list[str], texts: int) -> Row:
    """Import the family, export it again, and compare at every step."""
    import sentencepiece
    import torch
    import transformers

    import translume
    from translume.config import DecodingSettings
    from translume.engine import build_engine, self_test
    from translume.interchange.huggingface.reader import read_family

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source = folder / "theirs"
    bart = family in BART_FAMILIES
    (write_bart if bart else write_t5)(source, family, lines)
    translume.import_model(source, folder / "ours")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(source).eval()
    theirs = read_family(source)[0].mended(theirs)
    peer = transformers.AutoTokenizer.from_pretrained(source)
    ours = translume.load(folder / "ours", device="cpu", engine="plain")
    model, tokenizer = ours.checkpoint.model, ours.checkpoint.source_tokenizer
    direction = BART_FAMILIES[family][2] if bart else {"to": "de"} if "de" in tokenizer.languages else {}
    tags, begins = ([id_ for code, id_ in tokenizer.languages.items() if code == direction.get(side, "")]
                    for side in ("from_" if bart else "to", "to"))  # fmt: skip
    begins = begins if bart else []
    decoding = DecodingSettings(
        strategy="beam", beam=4, max_length=19 - len(begins), max_length_ratio=99.0, length_penalty=0.0, split="never",
        **direction,
    )  # fmt: skip
    encoder = logits = 0.0
    equal = 0
    for line in lines[:texts]:
        read = torch.tensor([[*tags, *tokenizer.encode(line), tokenizer.specials.eos]])
        mask = torch.ones_like(read)
        target = torch.tensor([[tokenizer.specials.bos, *begins, *tokenizer.encode(line)[:17]]])
        with torch.no_grad():
            forced = theirs(input_ids=read, attention_mask=mask, decoder_input_ids=target)
            state = model.start(read, mask.bool())
            hidden, _ = model.decoder(target, state)
            plain = model.head.plain()["weight"]
            encoder = max(encoder, float((state.memory - forced.encoder_last_hidden_state).abs().max()))
            logits = max(logits, float((hidden @ plain.T - forced.logits).abs().max()))
            written = theirs.generate(
                input_ids=read, attention_mask=mask, num_beams=4, do_sample=False, max_length=20, length_penalty=0.0,
                bad_words_ids=[[tokenizer.specials.pad]], early_stopping="never",
                forced_bos_token_id=begins[0] if begins else None,
            )  # fmt: skip
        found = ours.translate(line, settings=decoding).hypotheses[0].ids
        ends = {tokenizer.specials.pad, tokenizer.specials.eos}
        ids = [id_ for id_ in written[0].tolist()[1 + len(begins) :] if id_ not in ends]
        equal += ids == [id_ for id_ in found if id_ not in ends]
    odd = list(hostile(len(lines) // 10))

    def same(ids_of: Any) -> str:
        counts = [sum(ids_of(text) == tokenizer.encode(text) for text in given) for given in (lines, odd)]
        return f"{counts[0]}/{len(lines)}+{counts[1]}/{len(odd)}"

    spiece = source / "spiece.model"
    peers = [same(lambda text: peer(text, split_special_tokens=bart)["input_ids"][len(begins) : -1])]
    if spiece.exists():
        peers.append(same(sentencepiece.SentencePieceProcessor(str(spiece)).encode))
    mixed = family in ("switch", "nllb-moe")
    tests = [
        math.nan if mixed else self_test(build_engine(model, dtype), model, alone=False).difference
        for dtype in ("fp32", "int8")
    ]
    exports = [
        math.nan if mixed else translume.export(folder / "ours", target, folder / target).difference
        for target in ("huggingface", "ctranslate2")
    ]
    return Row(
        family=family,
        parameters=sum(each.numel() for each in theirs.parameters()),
        encoder=encoder,
        logits=logits,
        texts=f"{equal}/{texts}",
        ids_transformers=peers[0],
        ids_sentencepiece=peers[1] if len(peers) > 1 else "-",
        exported=exports[0],
        ctranslate2=exports[1],
        engine_fp32=tests[0],
        engine_int8=tests[1],
    )


if __name__ == "__main__":
    main()
