"""A small tokenizer of every kind, trained on one text."""

import pytest

from translume.config import TokenizerSettings
from translume.text import Tokenizer, train_tokenizer

LINES = ["the cat sat on the mat.", "Zwei Hunde laufen über die Wiese, schnell!", "犬が走る 2 times"]
KINDS = {
    "bpe": ("bytes", "token"),
    "unigram": ("bytes", "token"),
    "wordpiece": ("token",),
    "word": ("token",),
    "character": ("bytes", "token"),
    "byte": ("bytes",),
}
"""What each kind makes of characters that it does not know."""
NAMES = [f"{kind}-{unknown}" for kind, ways in KINDS.items() for unknown in ways]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    """Return tokenizers by kind and handling of unknown characters, such as "bpe-bytes"."""
    chosen = {name: name.split("-") for name in NAMES}
    return {
        name: train_tokenizer(TokenizerSettings(kind=kind, size=400, unknown=unknown), LINES)
        for name, (kind, unknown) in chosen.items()
    }


@pytest.fixture(scope="session", params=NAMES)
def tokenizer(request: pytest.FixtureRequest, tokenizers: dict[str, Tokenizer]) -> Tokenizer:
    """Return each of the tokenizers in turn."""
    return tokenizers[request.param]
