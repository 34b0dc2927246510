"""A check of the whole text of an error."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    """Check that the block raises an error of this kind, with exactly this text."""
    with pytest.raises(kind) as caught:
        yield
    assert str(caught.value) == text
