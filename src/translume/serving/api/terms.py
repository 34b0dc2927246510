"""Terms of a glossary in the lines of a request."""

from collections.abc import Sequence

from translume.translator.constraints import places

Terms = Sequence[tuple[str, str]]
"""Pairs of a source and a target term."""


def terms_in(line: str, terms: Terms) -> tuple[str, ...]:
    """Return the target terms of the source terms that a line has as whole words, ignoring case."""
    folded = line.casefold() if terms else ""
    return tuple(dict.fromkeys(target for source, target in terms if places(source.casefold(), folded)))
