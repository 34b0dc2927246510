"""A small model to save and load."""

from collections.abc import Callable

import pytest
import torch

from translume.checkpoint import Checkpoint, build_model
from translume.config import Config, ModelSettings, SoftmaxSettings, TokenizerSettings
from translume.text import Tokenizer, train_tokenizer

TEXTS = ["a man rides a bike.", "the dog runs far away!", "two women sit on a bench"]
OTHER = ["ein Mann fährt Rad.", "der Hund läuft weit weg!", "zwei Frauen sitzen auf einer Bank"]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), TEXTS)


@pytest.fixture(scope="session")
def other_tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerSettings(kind="character", size=61, unknown="token"), OTHER)


@pytest.fixture
def make(tokenizer: Tokenizer, other_tokenizer: Tokenizer) -> Callable[..., Checkpoint]:
    """Return a function from a seed to a checkpoint; `shared`: whether both sides have one vocabulary."""

    def build(seed: int = 1, *, shared: bool = True) -> Checkpoint:
        model = ModelSettings(width=22, feed_forward=29, encoder_layers=1, decoder_layers=2, attention_heads=11)
        if not shared:
            model = model.model_copy(update={"head": SoftmaxSettings(tie="target")})
        target = tokenizer if shared else other_tokenizer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build_model(model, len(tokenizer), len(target)).eval()
        return Checkpoint(
            config=Config(model=model), model=network, source_tokenizer=tokenizer, target_tokenizer=target
        )

    return build


@pytest.fixture
def checkpoint(make: Callable[..., Checkpoint]) -> Checkpoint:
    return make()
