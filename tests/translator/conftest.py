"""Small translators with random weights, which return a hypothesis for every text."""

from collections.abc import Callable

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, DataSettings, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.text import Tokenizer, train_tokenizer
from translume.translator import Translator

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"


def untrained(
    source: Tokenizer, target: Tokenizer, *options: str, seed: int = 5, data: DataSettings | None = None, **changes
) -> Translator:
    """Return a translator by [decoding] options and changed [model]. Large weights make end of sentence likely."""
    values = {"width": 32, "feed_forward": 48, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2}
    model = ModelSettings(**{**values, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(model, len(source), len(target)).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    config = Config(model=model, data=data or DataSettings()).change(*options)
    return Translator(Checkpoint(config=config, model=network, source_tokenizer=source, target_tokenizer=target))


@pytest.fixture(scope="session")
def make() -> Callable[..., Translator]:
    """Return translators from English to German by [decoding] options and longest source.

    Only lines that are too long are split.
    """
    source = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
    of_bytes = train_tokenizer(TokenizerSettings(kind="byte"), [])
    data = DataSettings(source_language="en", target_language="de")

    def build(*options: str, max_positions: int = 41, shared: bool = True, seed: int = 3, **changes) -> Translator:
        head = SoftmaxSettings(tie="all" if shared else "target")
        return untrained(
            source, source if shared else of_bytes, "decoding.split=never", *options, seed=seed, data=data,
            **{"encoder_layers": 2, "max_positions": max_positions, "head": head, **changes},
        )  # fmt: skip

    return build


@pytest.fixture(scope="session")
def translator(make: Callable[..., Translator]) -> Translator:
    return make("decoding.beam=3")
