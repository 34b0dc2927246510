"""A strategy: beam search that keeps two hypotheses, whatever `beam` is."""

from typing import ClassVar, Self

from translume.config import DecodingSettings
from translume.decoding import BeamSearch
from translume.decoding.beam import Keys
from translume.parts import part


@part("strategy", "my_part", interface=1)
class MyPart(BeamSearch):
    """Beam search of width 2; `choose` and `done` are where another search differs."""

    reads: ClassVar[frozenset[str]] = frozenset({"nbest"})

    @classmethod
    def from_settings(cls, settings: DecodingSettings, keys: Keys) -> Self:
        """Build the strategy of [decoding]."""
        return cls(width=2, nbest=min(2, settings.nbest))
