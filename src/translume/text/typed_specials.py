"""Special tokens in a text stay text, although a model of the `tokenizers` library would match them as pieces."""

import re
from collections.abc import Iterable
from itertools import pairwise

from translume.errors import SettingsError


def typed_specials(
    special: Iterable[str], codes: Iterable[str], pieces: Iterable[str], *, replace: bool = True, exact: bool = True
) -> tuple[list[str], list[str]]:
    """Return regular expressions of the places where special tokens in a text are changed, and where they are cut.

    codes: those that are meant at the beginning of a string.  replace: whether characters may be changed.
    exact: raise SettingsError for a token of which every cut could go through a piece. Otherwise it is cut before its
    last character: it stays text, perhaps with other pieces than its characters would have without the cut.
    """
    single: set[str] = set()
    inside: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    for piece in pieces:
        inside.update(piece)
        pairs.update(pairwise(piece))
        if len(piece) == 1:
            single.add(piece)
    codes, changed, cut = set(codes), [], []
    for name in special:
        whole = r"[\s\S]" if name in codes else ""
        place = next((place for place, each in enumerate(name) if each not in inside), None) if replace else None
        if place is not None:
            head, tail = re.escape(name[:place]), re.escape(name[place + 1 :])
            changed.append(rf"(?<={whole}{head}){re.escape(name[place])}(?={tail})")
            continue
        place = next(
            (
                place
                for place, pair in enumerate(pairwise(name), 1)
                if pair not in pairs and not (replace and single.isdisjoint(pair))
            ),
            None,
        )
        if place is None and (exact or len(name) == 1):
            raise SettingsError(f"tokenizer: the library would match the special token {name!r} in a text")
        place = place or len(name) - 1
        cut.append(rf"(?<={whole}{re.escape(name[:place])})(?={re.escape(name[place:])})")
    return ["|".join(changed)] if changed else [], ["|".join(cut)] if cut else []
