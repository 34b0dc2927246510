"""A small translator with random weights, and its traces, beam records and forced tokens."""

from collections.abc import Callable

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.inspection import BeamRecord, Forced, Trace, force_token, record_beam, trace
from translume.text import train_tokenizer
from translume.translator import Translator

ALPHABET = "abcdefghijklm nopqrstuvwxyz.!?<>/&\"'"


@pytest.fixture(scope="session")
def translator() -> Translator:
    tokenizer = train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), [ALPHABET])
    settings = ModelSettings(
        width=22, feed_forward=29, encoder_layers=2, decoder_layers=3, attention_heads=11, max_positions=41,
        head=SoftmaxSettings(tie="all"),
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = build_model(settings, len(tokenizer), len(tokenizer)).eval()
        for parameter in network.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    config = Config(model=settings).change("decoding.beam=3", "decoding.max_length=13")
    return Translator(Checkpoint(config=config, model=network, source_tokenizer=tokenizer, target_tokenizer=tokenizer))


@pytest.fixture(scope="session")
def make_trace(translator: Translator) -> Callable[..., Trace]:
    return lambda source, target=None, **options: trace(translator, source, target, **options)


@pytest.fixture(scope="session")
def make_beam(translator: Translator) -> Callable[..., BeamRecord]:
    return lambda source, **options: record_beam(translator, source, **options)


@pytest.fixture(scope="session")
def make_forced(translator: Translator) -> Callable[..., Forced]:
    return lambda source, step, token: force_token(translator, source, step, token)
