"""What the tests of the data room share: small files, a tokenizer that needs no training, settings for a corpus."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from translume.config.data import DataSettings
from translume.config.tokenizer import TokenizerSettings
from translume.text import Tokenizer, train_tokenizer

Write = Callable[[str, Sequence[str] | str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes lines, text or bytes under a name and gives the path."""

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
    """A tokenizer with a token for each byte: the length of ASCII text is its number of characters."""
    return train_tokenizer(TokenizerSettings(kind="byte"), ["a"])


@pytest.fixture(scope="session")
def by_merges() -> Tokenizer:
    """A BPE tokenizer with merges to drop."""
    return train_tokenizer(TokenizerSettings(kind="bpe", size=300), ["the rain in spain falls mainly"] * 20)


@pytest.fixture
def corpus_files(write: Write) -> Callable[..., DataSettings]:
    """Settings for two parallel files of these pairs, with the same pairs for validation unless told otherwise."""

    def files(pairs: Sequence[tuple[str, str]], *, valid: bool = True, **changes: object) -> DataSettings:
        source, target = write("train.en", [a for a, _ in pairs]), write("train.de", [b for _, b in pairs])
        settings = DataSettings(train_source=(source,), train_target=(target,))
        if valid:
            settings = settings.model_copy(update={"valid_source": (source,), "valid_target": (target,)})
        return settings.model_copy(update=changes)

    return files
