"""Language models with random weights."""

import torch

from translume.checkpoint import LanguageModelCheckpoint, build_language_model
from translume.config import Config, TokenizerSettings
from translume.text import train_tokenizer
from translume.translator import Generator


def untrained_generator(letters: list[str], **shape: int) -> Generator:
    """Return a generator that reads 40 of some letters.  shape: sizes of the decoder."""
    config = Config.build(
        {
            "data": {"task": "language_model", "block_length": 40},
            "tokenizer": {"kind": "character", "whitespace": "keep"},
            "model": {"encoder_layers": 0, "decoder_layers": 1, "max_positions": 40, **shape},
            "decoding": {"strategy": "greedy", "max_length": 9},
        }
    )
    settings = TokenizerSettings(kind="character", size=61, unknown="token", whitespace="keep")
    tokenizer = train_tokenizer(settings, letters)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = build_language_model(config.model, len(tokenizer), len(tokenizer)).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    return Generator(
        LanguageModelCheckpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    )
