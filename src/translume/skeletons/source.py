"""A kind of source: text files of numbers, each line of which is a frame."""

import io
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from translume.config import FrameSettings
from translume.parts import part
from translume.sources.features import FeatureReader
from translume.sources.reader import UnreadableError

SAMPLE = b"1 2 3\n4 5 6\n"
"""A file to check the reader with, for the settings of SAMPLE_SETTINGS."""
SAMPLE_SETTINGS = {"values": 3}


@part("source", "my_part", interface=1)
class MyPart(FrameSettings):
    """[data.source] kind = "my_part": the numbers in a text file."""

    reader: ClassVar[str] = f"{__name__}:MyPartReader"
    embedding: ClassVar[str] = "translume.model.frames:FrameEmbedding"
    medium: ClassVar[str] = "numbers"
    kind: Literal["my_part"] = "my_part"
    values: int = Field(default=80, ge=1, le=1_048_576)
    """Number of values F in each frame."""

    @property
    def size(self) -> int:
        """F."""
        return self.values


class MyPartReader(FeatureReader):
    """Reads frames [L, F] of text files; `convert` reads arrays."""

    def decode(self, content: bytes) -> NDArray[Any]:
        """Return the frames in the content of a file. Raises UnreadableError with the reason."""
        try:
            frames = np.loadtxt(io.BytesIO(content), ndmin=2)
        except ValueError as error:
            raise UnreadableError(f"is not a table of numbers: {error}") from None
        return self.convert(frames)
