"""What tells the language of a text."""

from typing import Protocol


class Detector(Protocol):
    """Tells languages. Safe to call from several threads."""

    def languages(self, text: str) -> list[tuple[str, float]]:
        """Codes of the likeliest languages with their probabilities, from 0 to 1, best first; empty where unknown."""
