"""Fixtures for the tests of `data`: small files, a tokenizer without training, settings for a corpus."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from translume.config.data import DataSettings
from translume.config.tokenizer import TokenizerSettings
from translume.text import Tokenizer, train_tokenizer

Write = Callable[[str, Sequence[str] | str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes lines, text or bytes to a named file and returns its path."""

    def writer(name: str, content: Sequence[str] | str | bytes) -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else "".join(f"{line}\n" for line in content)
            path.write_bytes(text.encode("utf-8"))
        return str(path)

    return writer


@pytest.fixture(scope="session")
def by_bytes() -> Tokenizer:
    """Return a byte tokenizer: ASCII text has one token per character."""
    return train_tokenizer(TokenizerSettings(kind="byte"), ["a"])


@pytest.fixture(scope="session")
def by_merges() -> Tokenizer:
    """Return a BPE tokenizer with merges."""
    return train_tokenizer(TokenizerSettings(kind="bpe", size=300), ["the rain in spain falls mainly"] * 20)


@pytest.fixture
def corpus_files(write: Write) -> Callable[..., DataSettings]:
    """Return a function from pairs to settings of two parallel files; validation has the same pairs by default."""

    def files(pairs: Sequence[tuple[str, str]], *, valid: bool = True, **changes: object) -> DataSettings:
        source, target = write("train.en", [a for a, _ in pairs]), write("train.de", [b for _, b in pairs])
        settings = DataSettings(train_source=(source,), train_target=(target,))
        if valid:
            settings = settings.model_copy(update={"valid_source": (source,), "valid_target": (target,)})
        return settings.model_copy(update=changes)

    return files
