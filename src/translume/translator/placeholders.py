"""What a target has to take over from its source as it is: numbers, addresses, tags."""

import re
from collections import Counter
from collections.abc import Sequence

PATTERNS = {
    "tag": re.compile(r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>|\{\{?\w+\}?\}|%(?:\(\w+\))?[sd]\b"),
    "url": re.compile(r"(?:https?://|www\.)[^\s<>\"]*[^\s<>\".,;:!?)\]]"),
    "number": re.compile(r"(?<![\w.,])\d+(?:[.,:/-]\d+)*(?!\w|[.,:/-]\d)"),
}
"""By kind: `<b>`, `{name}` and `%s`; addresses that begin with http:// or www.; digits and what joins them."""


def placeholders_of(text: str, kinds: Sequence[str]) -> list[str]:
    """The placeholders of the named kinds in their order, as often as they stand there; none within another.

    A number as it is written: 1,000 is not 1.000, and whoever wants numbers to follow a language must not ask for them.
    """
    places: dict[int, int] = {}
    for kind, pattern in PATTERNS.items():
        if kind not in kinds:
            continue
        for match in pattern.finditer(text):
            if not any(begin < match.end() and match.start() < end for begin, end in places.items()):
                places[match.start()] = match.end()
    return [text[begin:end] for begin, end in sorted(places.items())]


def lost_placeholders(wanted: Sequence[str], target: str) -> list[str]:
    """Those of `wanted` that the target has not, or not as often, each once, in their order.

    One counts where it stands by itself: the number 5 is not in 150, nor in 5.5.
    """
    counts = Counter(wanted)
    return [text for text, count in counts.items() if _count(text, target) < count]


def _count(text: str, target: str) -> int:
    before = r"(?<![\w.,])" if text[0].isalnum() else ""
    # A full stop after a number ends a sentence, a digit after it goes on with the number.
    after = r"(?!\w|[.,:/-]\d)" if text[-1].isalnum() else ""
    return len(re.findall(before + re.escape(text) + after, target))
