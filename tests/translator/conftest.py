"""Fixtures: small translators with random weights, which return a hypothesis for every text."""

from collections.abc import Callable

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, DataSettings, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.text import train_tokenizer
from translume.translator import Translator

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?"


@pytest.fixture(scope="session")
def make() -> Callable[..., Translator]:
    """Return translators from English to German by [decoding] options and longest source.

    Only lines that are too long are split. Large weights make end of sentence likely.
    """

    def build(*options: str, max_positions: int = 41, shared: bool = True, seed: int = 3) -> Translator:
        source = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
        target = source
        if not shared:
            target = train_tokenizer(TokenizerSettings(kind="byte"), [])
        head = SoftmaxSettings(tie="all" if shared else "target")
        model = ModelSettings(
            width=22,
            feed_forward=29,
            encoder_layers=2,
            decoder_layers=1,
            attention_heads=11,
            max_positions=max_positions,
            head=head,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build_model(model, len(source), len(target)).eval()
            for parameter in network.parameters():
                parameter.data += 0.3 * torch.randn_like(parameter)
        data = DataSettings(source_language="en", target_language="de")
        config = Config(model=model, data=data).change("decoding.split=never", *options)
        return Translator(Checkpoint(config=config, model=network, source_tokenizer=source, target_tokenizer=target))

    return build


@pytest.fixture(scope="session")
def translator(make: Callable[..., Translator]) -> Translator:
    return make("decoding.beam=3")
