"""Tokens with their positions in a text, and tokens joined to words by the rules of `Word`."""

from collections.abc import Container, Sequence
from math import inf

from translume.inspection.values import Token, Word
from translume.text import Tokenizer
from translume.text.segmentation import character_class


def tokens_of(tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[Token, ...]:
    """Return the tokens of `ids` with their characters.

    spans: of the first ids; the ids after them, such as an added end mark, have no characters.
    """
    last = max((end for _, end in spans), default=0)
    places = [*spans, *[(last, last)] * (len(ids) - len(spans))]
    return tuple(
        Token(id=id_, text=text, begin=begin, end=end)
        for id_, text, (begin, end) in zip(ids, tokenizer.tokens(ids), places, strict=True)
    )


def words_of(
    text: str, tokens: Sequence[Token], marks: Container[int], log_probs: Sequence[float] | None = None
) -> tuple[Word, ...]:
    """Join the tokens of a text to words.

    marks: ids of special tokens, each of which is a word.  log_probs: one per token, summed by word.
    """
    starts = [0] if tokens else []
    for index in range(1, len(tokens)):
        before, token = tokens[index - 1], tokens[index]
        if before.id in marks or token.id in marks or _splits(text, before, token):
            starts.append(index)
    words = []
    for first, last in zip(starts, [*starts[1:], len(tokens)], strict=True):
        begin, end = tokens[first].begin, tokens[last - 1].end
        begin += len(text[begin:end]) - len(text[begin:end].lstrip(" "))
        log_p = None if log_probs is None or -inf in log_probs[first:last] else sum(log_probs[first:last])
        shown = text[begin:end] or tokens[first].text
        words.append(Word(text=shown, first=first, last=last, begin=begin, end=end, log_p=log_p))
    return tuple(words)


def _splits(text: str, before: Token, token: Token) -> bool:
    """Return whether a word ends between two consecutive tokens."""
    own, other = text[token.begin : token.end], text[before.begin : before.end]
    if own.startswith(" "):
        return True
    if not own or not other or token.begin < before.end or other.isspace():
        return False  # no text, part of a character, or the space before this word
    return "unspaced" in (character_class(own[0]), character_class(other[-1]))
