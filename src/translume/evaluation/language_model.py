"""Scores of a language model on documents."""

from translume.evaluation.scores import Score
from translume.translator import Perplexity

NAMES = (
    ("perplexity", "perplexity", "token", 2),
    ("word_perplexity", "perplexity", "word", 2),
    ("bits_per_byte", "bits", "byte", 4),
    ("nats_per_character", "nats", "character", 4),
)
"""Attribute of `Perplexity`, title, unit and decimal places of each score."""


def perplexity_scores(found: Perplexity) -> tuple[Score, ...]:
    """Return the figures as scores with signatures.

    unit: the divisor: tokens and end marks; words of the raw text, separated by white space; bytes in UTF-8 or
    characters of the raw text.  end:yes: end marks are predicted too.
    """
    counts = {"token": found.tokens, "word": found.words, "byte": found.bytes, "character": found.characters}
    return tuple(
        Score(
            name=name,
            title=title,
            value=getattr(found, name),
            signature=f"unit:{unit}|units:{counts[unit]}|documents:{found.documents}|end:yes"
            f"|context:{found.context}|stride:{found.stride}",
            digits=digits,
        )
        for name, title, unit, digits in NAMES
    )
