"""Words of texts in all scripts, and their alignments from cross-attention."""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.data.lengths import truncated_ids
from translume.engine import Engine
from translume.lazy import Tensor, inference_mode, torch
from translume.text.segmentation import WITHOUT_SPACES
from translume.translator.planning import Piece, padded_arrays, tensors_of
from translume.translator.results import Alignment

if TYPE_CHECKING:
    from translume.model import Transformer

Array = NDArray[Any]
Span = tuple[int, int]

_WORD: Final = r"\w\u0300-\u036f\u0900-\u109f\u1780-\u17ff"
"""Characters of words, and vowel signs, which are not letters."""
_PARTS: Final = re.compile(rf"(?:[{_WORD}]|(?<=[0-9])[.,:][0-9])+|[^\s{_WORD}]+")
"""Words with the separators inside their numbers, and punctuation."""


@inference_mode()
def alignments(
    checkpoint: Checkpoint, pairs: Sequence[tuple[Piece, str, Sequence[int]]], engine: Engine | None = None
) -> list[Alignment]:
    """The alignments of pairs: a piece, the text that it stands for if it has none, and the ids of a hypothesis.

    engine: reads the pairs instead of the plain model.  Source tokens include the tag of a language, which belongs to
    no word.
    Needs one forced pass over all pairs; the search itself does not become slower.
    """
    if not pairs:
        return []
    reads, writes = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    end = reads.specials.source_end
    sources = [[*piece.read_ids, *end] for piece, _, _ in pairs]
    given = [[writes.specials.bos, *piece.target_tags, *ids[:-1]] for piece, _, ids in pairs]
    arrays = *padded_arrays(sources, reads.specials.pad), padded_arrays(given, writes.specials.pad)[0]
    if engine is None:
        attention = cross_attention(checkpoint.model, *tensors_of(arrays, checkpoint.device)).cpu().numpy()
    else:
        attention = engine.cross_attention(*arrays)
    aligned = []
    for row, (piece, line, target) in enumerate(pairs):
        text, ids, tags = piece.text or line, piece.read_ids, len(piece.target_tags)
        weights = attention[row, tags : tags + len(target), : len(ids) + len(end)]
        source_text, target_text = reads.normalise(text), writes.decode(target)
        spans = reads.spans_in(text)
        if len(spans) > len(piece.ids):  # it was cut
            last = checkpoint.config.data.cleaning.too_long == "keep_last"
            spans = truncated_ids(spans, len(piece.ids), "keep_last" if last else "keep_first")
        source_spans = [(0, 0)] * len(piece.source_tags) + spans
        target_spans = writes.spans(target)
        from_words, to_words = _words(source_text, source_spans), _words(target_text, target_spans)
        same = len(source_text) == len(text)
        aligned.append(
            Alignment(
                source_tokens=tuple(reads.tokens([*ids, *end])),
                weights=tuple(map(tuple, weights.tolist())),
                links=_links(weights[:, : len(ids)], from_words, to_words),
                word_links=tuple(
                    _word_links(weights[:, : len(ids)], source_text, source_spans, target_text, target_spans)
                )
                if same
                else (),
            )
        )
    return aligned


def cross_attention(model: "Transformer", source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
    """[B, T, S], fp32: mean attention over the heads of the second to last decoder layer, or of the only one.

    Merged attention reads the target too, so that the weights of a token sum to less than 1.

    source: ids [B, S], valid where mask [B, S] is True.  target: the decoder's input ids [B, T], bos first.
    """
    decoder = model.decoder
    state = decoder.start(model.encoder(source, mask), mask)
    x = decoder.embedding(target, torch.arange(target.size(1), device=target.device).expand(target.shape))
    positions = decoder.embedding.positions.for_attention(0, target.size(1), causal=True, device=x.device)
    layers = list(decoder.stack)
    asked: list[Tensor] = []
    merged: list[Tensor] = []
    for layer, past, cross in list(zip(layers, state.past.layers, state.cross, strict=True))[: max(1, len(layers) - 1)]:
        if layer.merged is not None:
            read = partial(layer.merged.merged, memory=cross, mask=mask, positions=positions, attended=merged)
            x = layer(x, read, None)
            continue
        attend = partial(layer.self_attention.cached, past=past, place=0, positions=positions)
        look = partial(layer.cross_attention.cached, memory=cross, mask=mask)
        x = layer(x, attend, partial(_noted, look=look, asked=asked))
    if merged:
        return merged[-1][..., target.size(1) :].float().mean(1)
    place = len(asked) - 1
    weights = layers[place].cross_attention.weights(asked[place], state.cross[place], mask)  # [B, H, T, S]
    return weights.float().mean(1)


def _noted(x: Tensor, look: partial[Tensor], asked: list[Tensor]) -> Tensor:
    asked.append(x)
    return look(x)


def _words(text: str, spans: Sequence[Span]) -> Array:
    """[words, tokens], fp32: 1 where a token spells a part of a word; words are separated by spaces."""
    number, word = [], -1
    for place, character in enumerate(text):
        if character.isspace():
            number.append(-1)
            continue
        if place == 0 or text[place - 1].isspace():
            word += 1
        number.append(word)
    membership = np.zeros((word + 1, len(spans)), np.float32)
    for token, (begin, end) in enumerate(spans):
        membership[sorted({each for each in number[begin:end] if each >= 0}), token] = 1.0
    return membership


def _links(weights: Array, from_words: Array, to_words: Array) -> tuple[tuple[int, int], ...]:
    """Pairs of a source and a target word, from attention [T, S] of tokens."""
    if not (len(from_words) and len(to_words)):
        return ()
    each = to_words @ weights @ from_words.T  # [target words, source words]
    best = each.argmax(1).tolist()
    return tuple((source, target) for target, source in enumerate(best) if bool(to_words[target].any()))


def _word_links(
    weights: Array, source: str, source_tokens: Sequence[Span], target: str, target_tokens: Sequence[Span]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the spans of each target word and of the source word with the most attention of its tokens."""
    from_spans, to_spans = word_spans(source, source_tokens), word_spans(target, target_tokens)
    if not from_spans or not to_spans:
        return
    best = (_shares(to_spans, target_tokens) @ weights @ _shares(from_spans, source_tokens).T).argmax(1).tolist()
    for place, span in zip(best, to_spans, strict=True):
        yield (*from_spans[place], *span)


def _shares(words: Sequence[Span], tokens: Sequence[Span]) -> Array:
    """[words, tokens], fp32: the share of each token's characters that belong to a word."""
    shares = np.zeros((len(words), len(tokens)), np.float32)
    for token, (begin, end) in enumerate(tokens):
        for place in range(bisect.bisect_right(words, begin, key=lambda word: word[1]), len(words)):
            if words[place][0] >= end:
                break
            shares[place, token] = (min(end, words[place][1]) - max(begin, words[place][0])) / (end - begin)
    return shares


def word_spans(text: str, tokens: Iterable[Span]) -> list[Span]:
    """Return the characters [begin, end) of each word and of the punctuation between words.

    tokens: spans of the tokens of the text. Only text in scripts without spaces is split at their ends.
    """
    cuts = {place for span in tokens for place in span}
    spans: list[Span] = []
    for part in _PARTS.finditer(text):
        inside = (place for place in range(part.start() + 1, part.end()) if place in cuts and _is_boundary(text, place))
        spans += itertools.pairwise([part.start(), *inside, part.end()])
    return spans


def _is_boundary(text: str, place: int) -> bool:
    """Return whether one word can end and another begin at a place between two letters."""
    around = text[place - 1 : place + 1]
    return bool(WITHOUT_SPACES.search(around)) and not unicodedata.category(text[place]).startswith("M")
