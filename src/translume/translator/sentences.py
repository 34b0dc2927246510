"""Where a text that is too long for the model may be cut: at the ends of its sentences."""

import re

_QUOTES = "\"'”’»›)\\]"
_FULL_WIDTH_QUOTES = "”’」』）】》"
_END = re.compile(
    # The look-behind begins each run of marks once, so that a megabyte of full stops takes linear time.
    rf"(?<![.!?…])(?P<mark>[.!?…]++)[{_QUOTES}]*+(?=\s)|[。！？｡]+[{_FULL_WIDTH_QUOTES}]*|(?<!\s)(?=\s*\n)"
)
_SPACE = re.compile(r"\s*")
_ABBREVIATION = re.compile(r"(?<!\w)(?:\w|\d+)\.\Z")
"""A single letter or a number before a full stop: "z. B.", "J. Smith", "3. Mai"."""


def split_sentences(text: str) -> list[tuple[str, str]]:
    """Sentences, each with the white space that follows it; joined they are the text.

    A sentence ends with . ! ? … before white space, unless a small letter follows or a single letter or a number stands
    before a full stop; with 。！？｡ anywhere; closing quotes and brackets belong to it; and at the end of a line.
    """
    sentences = []
    start = 0
    for found in _END.finditer(text):
        end = found.end()
        spacing = _SPACE.match(text, end)
        after = spacing.end() if spacing else end
        if end <= start or after <= start or (found["mark"] and _goes_on(text, start, found, after)):
            continue
        sentences.append((text[start:end], text[end:after]))
        start = after
    if start < len(text):
        sentences.append((text[start:], ""))
    return sentences


def _goes_on(text: str, start: int, found: re.Match[str], after: int) -> bool:
    if "\n" in text[found.end() : after]:
        return False
    if text[after : after + 1].islower():
        return True
    before = text[max(start, found.end("mark") - 12) : found.end("mark")]
    return found["mark"] == "." and _ABBREVIATION.search(before) is not None
