"""A small network with random weights, biases and gains, and a folder in the format of OPUS-MT."""

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, DecodingSettings, ModelSettings
from translume.model import Transformer
from translume.text import Tokenizer

VOCABULARY = 53


@pytest.fixture(scope="session", autouse=True)
def few_lines() -> Iterator[None]:
    """Compare SentencePiece with the library on fewer lines, since tests read many small models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("translume.text.imported.LINES", 100)
        yield


SHAPE = {
    "width": 34, "feed_forward": 29, "encoder_layers": 2, "decoder_layers": 3, "attention_heads": 17, "dropout": 0.0,
    "max_positions": 41,
}  # fmt: skip


def build(sizes: tuple[int, int] = (VOCABULARY, VOCABULARY), noise: float = 0.1, **changes: object):
    torch.manual_seed(23)
    settings = ModelSettings(**{**SHAPE, **changes})
    model = build_model(settings, *sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return model, settings


def random_checkpoint(
    source: Tokenizer, target: Tokenizer | None = None, decoding: DecodingSettings | None = None, **changes: object
) -> Checkpoint:
    """Random weights, biases and gains for the vocabularies of tokenizers."""
    target = target or source
    model, settings = build((len(source), len(target)), **changes)
    config = Config(model=settings, decoding=decoding or DecodingSettings(), tokenizer=source.settings)
    return Checkpoint(config=config, model=model, source_tokenizer=source, target_tokenizer=target)


@pytest.fixture(scope="session")
def make() -> Callable[..., tuple[Transformer, ModelSettings]]:
    return partial(build, norm="post")


SOURCES = (
    "A man is riding a bicycle.", "Two dogs play in the snow...", "The children sing, and 1,234 people listen!",
    "A woman reads a newspaper in the park.", "Is the little girl eating ice cream?", "Everyone knows the café.",
)  # fmt: skip
TARGETS = (
    "Ein Mann fährt Fahrrad.", "Zwei Hunde spielen im Schnee...", "Die Kinder singen, und 1.234 Leute hören zu!",
    "Eine Frau liest im Park die Zeitung.", "Isst das kleine Mädchen Eis?", "Alle kennen das Café.",
)  # fmt: skip


def sentencepiece_of(lines, **options) -> bytes:
    """A SentencePiece model trained on a few lines."""
    import sentencepiece

    written = io.BytesIO()
    values = {"vocab_size": 97, "character_coverage": 0.99, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20), model_writer=written, **{**values, **options}
    )
    return written.getvalue()


def pieces_of(model: bytes) -> list[str]:
    import sentencepiece

    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [
        peer.id_to_piece(each) for each in range(len(peer)) if not peer.is_control(each) and not peer.is_unknown(each)
    ]


def vocabulary_of(*models: bytes) -> dict[str, int]:
    """Ids in the order of OPUS-MT: EOS first, padding last."""
    pieces = dict.fromkeys(piece for model in models for piece in pieces_of(model))
    words = ["</s>", "<unk>", *pieces, ">>deu<<", "<pad>"]
    return {word: number for number, word in enumerate(words)}


def write_marian(
    folder: Path, *, separate: bool = False, tokenizer: dict[str, object] | None = None, **changes
) -> Path:
    """Save a folder like OPUS-MT's: random weights, two SentencePiece models, one vocabulary."""
    from transformers import MarianConfig, MarianMTModel, MarianTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    source, target = sentencepiece_of(SOURCES, **(tokenizer or {})), sentencepiece_of(TARGETS, **(tokenizer or {}))
    vocabularies = [vocabulary_of(source), vocabulary_of(target)] if separate else [vocabulary_of(source, target)]
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    size = min(map(len, vocabularies))
    if separate:  # one id of padding serves both
        vocabularies = [
            {word: id_ for id_, word in enumerate([*list(each)[: size - 1], "<pad>"])} for each in vocabularies
        ]
    for name, each in zip(("vocab.json", "target_vocab.json"), vocabularies, strict=False):
        (folder / name).write_text(json.dumps(each), encoding="utf-8")
    saved = MarianTokenizer(
        source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"), vocab=str(folder / "vocab.json"),
        target_vocab_file=str(folder / "target_vocab.json") if separate else None, separate_vocabs=separate,
        source_lang="en", target_lang="de",
    )  # fmt: skip
    saved.save_pretrained(folder)
    values = {
        "vocab_size": size, "decoder_vocab_size": len(vocabularies[-1]), "d_model": 34, "encoder_layers": 2,
        "decoder_layers": 3, "encoder_attention_heads": 17, "decoder_attention_heads": 17, "encoder_ffn_dim": 29,
        "decoder_ffn_dim": 29, "activation_function": "swish", "max_position_embeddings": 61, "scale_embedding": True,
        "pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0, "forced_eos_token_id": 0,
        "share_encoder_decoder_embeddings": not separate, "static_position_embeddings": True, "dropout": 0.1,
        "normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": False,
    }  # fmt: skip
    torch.manual_seed(23)
    model = MarianMTModel(MarianConfig(**{**values, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name in ("encoder", "decoder"):  # transformers makes these anew when it loads
            table = getattr(model.model, name).embed_positions
            table.weight.copy_(table.create_weight())
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        model.final_logits_bias[0, -1] = 0.0
    model.generation_config.num_beams = 3
    model.generation_config.max_length = 53
    model.generation_config.bad_words_ids = [[size - 1]]
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def opus() -> SimpleNamespace:
    """Functions that make such folders and their parts."""
    return SimpleNamespace(
        write=write_marian, sentencepiece_of=sentencepiece_of, vocabulary_of=vocabulary_of, pieces_of=pieces_of
    )
