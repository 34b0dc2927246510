"""Families of transformers in and out: one row each, with small models and tokenizers trained on real lines.

Random weights are trained for some updates to write the first tokens of a source, so that targets end and vary.
Columns: parameters; largest |Δ| of encoder states and of all log-probabilities against transformers in fp32; texts of a
beam search that are equal, how many of them ended before the limit, and how many are distinct; lines with the same ids
as from transformers, and as from SentencePiece (hostile texts after the `+`); |Δ log p| of the model exported to
transformers, and to CTranslate2; difference of the engine from the plain model in fp32 and int8, in nats. A dash stands
for what Translume does not have for a family, such as mixtures of experts.

    python benchmarks/families.py [--data FOLDER] [--families t5,mt5] [--lines 10000] [--texts 200] [--json]
"""

import argparse
import gzip
import io
import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _own_families import OWN_FAMILIES, write_own

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
DATA = Path(os.environ.get("TRANSLUME_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
FILES = ("tatoeba_en_de/train.de", "tatoeba_en_fr/train.fr", "tatoeba_en_zh/train.zh", "tatoeba_en_zh/train.en")
ODD = "áéＡﬁ½…\u00ad\u200b\u0301\u0308\u1100\u1161\u11a8ｶﾞ㍍😀▁\u3000\u00a0\u2028\ufffd\u00a8\t .,abcdehimno"
UNTIED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
GLOBAL = {"encoder_attention_type": "transient-global", "local_radius": 5, "global_block_size": 4}
T5_FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[str, ...] | None]] = {
    "t5": ("T5", {}, ()),
    "t5-v1.1": ("T5", UNTIED, ()),
    "mt5": ("MT5", UNTIED, tuple(f"▁<extra_id_{number}>" for number in reversed(range(100)))),
    "madlad-400": ("T5", UNTIED, ("<2de>", "<2fr>", "<2zh>")),
    "byt5": ("T5", UNTIED, None),
    "umt5": ("UMT5", UNTIED, ()),
    "longt5": ("LongT5", {**UNTIED, "encoder_attention_type": "local", "local_radius": 5}, ()),
    "longt5-global": ("LongT5", {**UNTIED, **GLOBAL}, ()),
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
    log_p: float
    texts: str
    ended: int
    distinct: int
    ids_transformers: str
    ids_sentencepiece: str
    exported: float | str
    ctranslate2: float | str
    engine_fp32: float | str
    engine_int8: float | str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    parser.add_argument(
        "--families", default="t5,byt5" if SHORT else ",".join([*T5_FAMILIES, *BART_FAMILIES, *OWN_FAMILIES])
    )
    parser.add_argument("--lines", type=int, default=500 if SHORT else 10_000)
    parser.add_argument("--texts", type=int, default=10 if SHORT else 200)
    parser.add_argument("--updates", type=int, default=20 if SHORT else 300, help="of training before the comparison")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = read_lines(options.data, options.lines)
    rows = []
    for family in options.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(asdict(measure(family, Path(folder), lines, options.texts, options.updates)))
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
        "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 160, "decoder_ffn_dim": 160,
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


def teach(model: Any, sources: list[list[int]], updates: int, inputs: Callable[[Any, Any], dict[str, Any]]) -> None:
    """Train a model to write the first eight tokens of each source.  inputs: as of a family."""
    import torch
    import torch.nn.functional as F

    values, size = model.generation_config, model.get_output_embeddings().weight.size(0)
    begin = values.decoder_start_token_id if values.decoder_start_token_id is not None else values.bos_token_id
    marks = {begin, values.eos_token_id, values.pad_token_id, *sources[0][-2:]}
    trained = [parameter for name, parameter in model.named_parameters() if "embed_positions" not in name]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, weight_decay=0.0)
    draw = random.Random(4)
    for _ in range(updates):
        rows = draw.sample(sources, 16)
        targets = [[id_ for id_ in row if id_ not in marks and id_ < size][:8] for row in rows]
        read, mask = padded(rows)
        written, _ = padded([[begin, *row] for row in targets])
        labels, judged = padded([[*row, values.eos_token_id] for row in targets])
        given = {**inputs(read, None), "attention_mask": mask, "decoder_input_ids": written}
        logits = model(**given, use_cache=False).logits
        loss = (F.cross_entropy(logits.mT, labels, reduction="none") * judged).sum() / judged.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()


def of_one_length(lines: list[str], encode: Any) -> list[list[tuple[str, list[int]]]]:
    """Return groups of lines with their ids, of one length each."""
    encoded = sorted(((line, encode(line)) for line in dict.fromkeys(lines)), key=lambda pair: len(pair[1]))
    return [[*group] for _, group in itertools.groupby(encoded, key=lambda pair: len(pair[1]))]


def padded(rows: list[list[int]]) -> tuple[Any, Any]:
    """Return rows of ids as one tensor, padded with 0, and its mask."""
    import torch

    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def load_model(folder: Path) -> Any:
    """Return the model of transformers in a folder."""
    import transformers

    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings") is False:
        model.config.tie_word_embeddings = False  # transformers 5 reads true for every UMT5
    return model


def measure(family: str, folder: Path, lines: list[str], texts: int, updates: int) -> Row:
    """Import the family, export it again, and compare at every step."""
    import sentencepiece
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    import translume
    from translume.config import DecodingSettings
    from translume.engine import EngineError, build_engine, self_test
    from translume.engine.packing import Dtype
    from translume.errors import SettingsError, TranslumeError
    from translume.interchange.huggingface.reader import read_family

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source, bart, folders = folder / "theirs", family in BART_FAMILIES, tuple[Path, ...]()
    if family in OWN_FAMILIES:
        folders = write_own(source, family, lines)
    else:
        (write_bart if bart else write_t5)(source, family, lines)
    theirs, weights, reader = load_model(source), source / "model.safetensors", read_family(source)[0]
    peer = transformers.AutoTokenizer.from_pretrained(folders[0] if folders else source)
    teach(theirs, [peer(line)["input_ids"] for line in lines], updates, reader.inputs)
    state = theirs.state_dict()
    save_file(
        {name: state[reader.renamed(name)].clone() for name in load_file(weights)}, weights, metadata={"format": "pt"}
    )
    translume.import_model(source, folder / "ours", vocabularies=folders)
    theirs = reader.mended(load_model(source))
    ours = translume.load(folder / "ours", device="cpu", engine="plain")
    model, reads, writes = ours.checkpoint.model, ours.checkpoint.source_tokenizer, ours.checkpoint.target_tokenizer
    direction: dict[str, Any] = BART_FAMILIES[family][2] if bart else {"to": "de"} if "de" in reads.languages else {}
    tags, begins = ([id_ for code, id_ in reads.languages.items() if code == direction.get(side, "")]
                    for side in ("from_" if bart else "to", "to"))  # fmt: skip
    begins = begins if ours.config.model.target_tags else []
    begin, ends = [writes.specials.bos, *begins], {writes.specials.pad, writes.specials.eos}
    longest = 19 - len(begins)
    decoding = DecodingSettings(
        strategy="beam", beam=4, max_length=longest, max_length_ratio=99.0, length_penalty=0.0, split="never",
        **direction,
    )  # fmt: skip
    never = [[id_] for id_ in {writes.specials.pad, writes.specials.bos} - {writes.specials.eos}]
    encoder = log_p = 0.0
    wanted: dict[str, list[int]] = {}
    for group in of_one_length(lines[:texts], lambda line: [*tags, *reads.encode(line), *reads.specials.source_end]):
        read = torch.tensor([ids for _, ids in group])
        given = {**reader.inputs(read, ours.config.data.source), "attention_mask": torch.ones_like(read)}
        written = read.clamp(max=len(writes) - 1)[:, len(tags) :][:, :17]
        target = torch.cat([torch.tensor([begin] * len(group)), written], 1)
        with torch.no_grad():
            forced = theirs(**given, decoder_input_ids=target, use_cache=False)
            state = model.start(read, torch.ones_like(read).bool())
            hidden, _ = model.decoder(target, state)
            belief = model.head.next_token(hidden.flatten(0, 1), None).log_probs()
            encoder = max(encoder, float((state.memory - forced.encoder_last_hidden_state).abs().max()))
            log_p = max(log_p, float((belief - forced.logits.flatten(0, 1).log_softmax(-1)).abs().max()))
            rows = theirs.generate(
                **given, num_beams=4, do_sample=False, max_length=20, length_penalty=0.0, early_stopping="never",
                bad_words_ids=never or None, forced_bos_token_id=begins[0] if begins else None, min_length=0,
                no_repeat_ngram_size=0, forced_eos_token_id=None, encoder_no_repeat_ngram_size=0,
            ).tolist()  # fmt: skip
        for (line, _), row in zip(group, rows, strict=True):
            wanted[line] = [id_ for id_ in row[len(begin) :] if id_ not in ends]
    found = [each.hypotheses[0].ids for each in ours.translate_all(lines[:texts], settings=decoding)]
    short = [[id_ for id_ in ids if id_ not in ends] for ids in found]
    equal = sum(wanted[line] == ids for line, ids in zip(lines, short, strict=False))
    odd = list(hostile(len(lines) // 10))

    def same(ids_of: Any) -> str:
        counts = [sum(ids_of(text) == reads.encode(text) for text in given) for given in (lines, odd)]
        return f"{counts[0]}/{len(lines)}+{counts[1]}/{len(odd)}"

    def tried(function: Any) -> Any:
        try:
            return function()
        except (SettingsError, EngineError):
            return "-"
        except TranslumeError:
            return "fails"

    def engine(dtype: Dtype) -> float:
        return self_test(build_engine(model, dtype), model, alone=False).difference

    def exported(target: str) -> float:
        return translume.export(folder / "ours", target, folder / target).difference

    spiece, after = source / "spiece.model", len(reads.specials.source_end)
    options = {"split_special_tokens": family not in T5_FAMILIES}
    before = 0 if family == "madlad-400" else len(tags)  # its tag is typed there
    peers = [same(lambda text: (ids := peer(text, **options)["input_ids"])[before : len(ids) - after])]
    if spiece.exists() and family in T5_FAMILIES:
        peers.append(same(sentencepiece.SentencePieceProcessor(str(spiece)).encode))
    return Row(
        family=family,
        parameters=sum(each.numel() for each in theirs.parameters()),
        encoder=encoder,
        log_p=log_p,
        texts=f"{equal}/{texts}",
        ended=sum(len(ids) < longest for ids in short),
        distinct=len({*map(tuple, short)}),
        ids_transformers=peers[0],
        ids_sentencepiece=peers[1] if len(peers) > 1 else "-",
        exported=tried(lambda: exported("huggingface")),
        ctranslate2=tried(lambda: exported("ctranslate2")),
        engine_fp32=tried(lambda: engine("fp32")),
        engine_int8=tried(lambda: engine("int8")),
    )


if __name__ == "__main__":
    main()
