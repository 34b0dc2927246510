"""Build translations of lines, whole or partial, from the hypotheses found for their pieces."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.data.lengths import Lengths
from translume.text import Tokenizer
from translume.translator.alignment import alignments
from translume.translator.constraints import lost_placeholders, placeholders_of
from translume.translator.planning import LinePlan, Piece, batches
from translume.translator.results import Alignment, TextHypothesis, Translation

if TYPE_CHECKING:
    from translume.decoding import SearchObserver
    from translume.engine import Engine

_LINE_BREAKS = re.compile(r"[\r\n]+")
_THAI = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
"""Letters of Thai, Lao, Burmese and Khmer, which write spaces between sentences but not between words."""
UNSPACED = re.compile("[\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Han, Kana and their punctuation."""


def join_pieces(plan: LinePlan, by_piece: Sequence[Sequence[TextHypothesis]], nbest: int) -> Translation:
    """The translation of a line from the hypotheses of its pieces; a piece without is kept, or stays empty."""
    if not any(by_piece):
        return Translation(source=plan.line.text, text=_text_of(plan.pieces, by_piece, ()), warnings=plan.warnings)
    hypotheses = tuple(by_piece[0] if len(plan.pieces) == 1 else _join(plan.pieces, by_piece, nbest))
    if not _LINE_BREAKS.search(plan.line.text):
        hypotheses = tuple(
            each if (text := _on_one_line(each.text)) == each.text else replace(each, text=text) for each in hypotheses
        )
    return Translation(source=plan.line.text, text=hypotheses[0].text, hypotheses=hypotheses, warnings=plan.warnings)


def _join(pieces: Sequence[Piece], by_piece: Sequence[Sequence[TextHypothesis]], nbest: int) -> list[TextHypothesis]:
    """The `nbest` combinations, one hypothesis from each piece, with the largest sums of scores."""
    scored = [[(each.score, each) for each in hypotheses] for hypotheses in by_piece if hypotheses]
    return [
        TextHypothesis.joined(
            chosen, text=_text_of(pieces, by_piece, chosen), log_prob=sum(each.log_prob for each in chosen), score=score
        )
        for score, chosen in best_choices(scored, nbest)
    ]


def _text_of(
    pieces: Sequence[Piece], by_piece: Sequence[Sequence[TextHypothesis]], chosen: Sequence[TextHypothesis]
) -> str:
    """The text of a line.  chosen: a hypothesis for each piece that has any."""
    joined, rest = _JoinedText(), iter(chosen)
    parts = [
        joined.add(piece, next(rest).text if hypotheses else None)
        for piece, hypotheses in zip(pieces, by_piece, strict=True)
    ]
    return "".join(parts)


class _JoinedText:
    """The end of a line's targets that were joined so far, on which the white space before the next one depends."""

    def __init__(self) -> None:
        self._last = self._spacing = self._source = ""

    def add(self, piece: Piece, text: str | None) -> str:
        """Return the next part: the white space before the target of a piece, and the target.  None: it has none."""
        text = piece.text if piece.kept else text
        if text is None:
            self._spacing += piece.spacing
            return ""
        part = separator_between(self._last, self._spacing, text, self._source + piece.text[:1]) + text
        self._last, self._spacing, self._source = part[-1:] or self._last, piece.spacing, piece.text[-1:]
        return part


T = TypeVar("T")


def best_choices(options: Sequence[Sequence[tuple[float, T]]], maximum: int) -> list[tuple[float, list[T]]]:
    """The choices of one from each of `options` with the largest sums of scores, best first; at most `maximum`.

    A choice is kept as a chain from its last element to its first, so that the time grows with the options, not with
    their square.
    """
    best: list[tuple[float, Any]] = [(0.0, None)]
    for each in options:
        longer = [(before + score, (chosen, option)) for before, chosen in best for score, option in each]
        best = sorted(longer, key=lambda choice: -choice[0])[:maximum]
    choices = []
    for score, last in best:
        chosen: list[T] = []
        while last is not None:
            last, option = last
            chosen.append(option)
        choices.append((score, chosen[::-1]))
    return choices


def combinations(translations: Sequence[Translation], maximum: int) -> list[list[Translation]]:
    """The best choices of one hypothesis for each translation, by the sum of scores, best first; at most `maximum`.

    Each translation of a choice has only the chosen hypothesis.
    """
    options = [
        [(one.score, replace(each, text=one.text, hypotheses=(one,))) for one in each.hypotheses] or [(0.0, each)]
        for each in translations
    ]
    return [chosen for _, chosen in best_choices(options, maximum)]


def separator_between(before: str, spacing: str, after: str, source: str) -> str:
    """The white space between two translated sentences: the source's, unless only one of the scripts uses spaces.

    Chinese and Japanese write no space between sentences.
    source: the last letter of the source sentence and the first letter of the next one.
    """
    if not before or not after:
        return spacing
    unspaced = [UNSPACED.match(character) is not None for character in (before[-1], after[0])]
    if spacing == "" and not any(unspaced) and _THAI.match(source):
        return " "  # a sentence was cut between two words
    if unspaced == [UNSPACED.match(character) is not None for character in source]:
        return spacing
    if spacing == "" and not any(unspaced):
        return " "
    return "" if spacing == " " and all(unspaced) else spacing


def _on_one_line(text: str) -> str:
    """The text with a space for each line break: one line of input gives one line of output."""
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


MAX_LOOP_WORDS = 8
"""Maximum number of words in a repeated phrase."""
MIN_REPETITIONS = 4
"""Repetitions in a row from which a phrase counts as a loop."""
LOW_RATIO, MIN_SOURCE_WORDS = 0.3, 10
"""Ratio of target words to source words below which a target counts as too short, and the shortest source to check."""
MIN_SOURCE_TOKENS = 8
"""The shortest source to check by tokens."""


def quality_warnings(source: str, target: str, *, cut: bool) -> list[str]:
    """Warnings about a suspicious target, as `word: detail`; the first words never change.

    `truncated`: it was cut at its limit, as `cut` says.  `repetition`: a phrase of up to 8 words occurs 4 times or more
    in a row, and more often than in the source.
    Words are separated by spaces; in a text with hardly any spaces each character counts as a word.
    """
    written = words_of(target)
    warnings = []
    if cut:
        warnings.append("truncated: the target reached its limit of tokens before its end")
    if len(written) - len(set(written)) < MIN_REPETITIONS - 1:  # no word occurs so often
        return warnings
    times, words = longest_repetition(written)
    if times >= MIN_REPETITIONS and times > longest_repetition(words_of(source))[0]:
        warnings.append(f"repetition: {' '.join(words)!r} stands {times} times in a row")
    return warnings


def short_by_words(source: str, target: str) -> list[str]:
    """A warning, `low_source_use: …`, if the source has 10 words or more and the target less than 0.3 times as many."""
    written, given = words_of(target), words_of(source)
    if len(given) < MIN_SOURCE_WORDS or len(written) >= LOW_RATIO * len(given) or spaced(source) != spaced(target):
        return []
    return [f"low_source_use: {len(written)} words for {len(given)} of the source"]


def short_by_tokens(
    pieces: Sequence[Piece], by_piece: Sequence[Sequence[TextHypothesis]], lengths: Lengths
) -> Iterator[str]:
    """Warnings, `low_source_use: …`, about targets shorter than nearly all training targets of such sources.

    by_piece: the hypotheses of each piece, the best first.  Only sources of 8 tokens or more are checked.
    """
    for number, (piece, hypotheses) in enumerate(zip(pieces, by_piece, strict=True), start=1):
        if len(piece.ids) < MIN_SOURCE_TOKENS or not hypotheses:
            continue
        size = len(hypotheses[0].ids) - (hypotheses[0].finished_by == "eos")
        least = lengths.least_target(len(piece.ids))
        if size < least and (not size or least >= 2):  # an answer of one token does not grow with its source
            which = f"sentence {number}: " if len(pieces) > 1 else ""
            yield (
                f"low_source_use: {which}{size:,} tokens for {len(piece.ids):,} of the source, "
                f"where training targets have at least {math.ceil(least):,}"
            )


def spaced(text: str) -> bool:
    """Whether a text is written with spaces: at least one in 20 characters on average, and hardly any Han or Kana."""
    if len(text) > 20 * len(text.split()):
        return False
    return text.isascii() or 2 * len(UNSPACED.findall(text)) <= len(text)


def words_of(text: str) -> list[str]:
    """The words of a text, or its characters if it is written without spaces."""
    return text.split() if spaced(text) else list("".join(text.split()))


def longest_repetition(words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The most repetitions of a phrase in a row, and the phrase; of equals the shortest, then the first."""
    times, loop = (1, tuple(words[:1])) if words else (0, ())
    for length in range(1, min(MAX_LOOP_WORDS, len(words) // 2) + 1):
        run = 0
        for place in range(length, len(words)):
            run = run + 1 if words[place] == words[place - length] else 0
            if run // length + 1 > times:
                times, loop = run // length + 1, tuple(words[place - length + 1 : place + 1])
    return times, loop


SearchedPiece = tuple[list[TextHypothesis], tuple[str, ...]]
"""The hypotheses of a piece and the warnings about them."""


def build_translations(
    checkpoint: Checkpoint,
    plans: Sequence[LinePlan],
    searched: Sequence[SearchedPiece],
    settings: DecodingSettings,
    engine: "Engine | None",
) -> list[Translation]:
    """The translations of the lines of `plans`.  searched: for each piece of all plans, in order.  engine: aligns."""
    rest = iter(searched)
    translations = [_build_translation(checkpoint, plan, [next(rest) for _ in plan.pieces], settings) for plan in plans]
    if not settings.alignment:
        return translations
    return add_alignments(checkpoint, plans, translations, settings.max_tokens, engine)


def _build_translation(
    checkpoint: Checkpoint, plan: LinePlan, searched: Sequence[SearchedPiece], settings: DecodingSettings
) -> Translation:
    whole = join_pieces(plan, [hypotheses for hypotheses, _ in searched], settings.nbest)
    notes = [warning for _, warnings in searched for warning in warnings]
    if whole.hypotheses:
        if settings.placeholders:
            wanted = map(checkpoint.target_tokenizer.normalise, placeholders_of(whole.source, settings.placeholders))
            notes += [
                f"placeholder_lost: {text!r} is not in the target" for text in lost_placeholders([*wanted], whole.text)
            ]
        signs = quality_warnings(whole.source, whole.text, cut=whole.hypotheses[0].finished_by == "length")
        if checkpoint.lengths is not None:
            signs += short_by_tokens(plan.pieces, [hypotheses for hypotheses, _ in searched], checkpoint.lengths)
        else:
            signs += short_by_words(whole.source, whole.text)
        if signs:
            whole = replace(whole, quality_warnings=tuple(signs))
    return replace(whole, warnings=(*whole.warnings, *notes)) if notes else whole


def add_alignments(
    checkpoint: Checkpoint,
    plans: Sequence[LinePlan],
    translations: Sequence[Translation],
    max_tokens: int,
    engine: "Engine | None",
) -> list[Translation]:
    """The translations with the alignment of each hypothesis; lines in several pieces get none."""
    places, pairs = [], []
    for number, (plan, translation) in enumerate(zip(plans, translations, strict=True)):
        if len(plan.pieces) == 1:
            piece = plan.pieces[0]
            places += [(number, rank) for rank in range(len(translation.hypotheses))]
            pairs += [(piece, plan.line.text, each.ids) for each in translation.hypotheses]
    made: dict[tuple[int, int], Alignment] = {}
    sizes = [max(len(piece.read_ids) + 1, len(piece.target_tags) + len(target)) for piece, _, target in pairs]
    for batch in batches(sizes, max_tokens):
        aligned = alignments(checkpoint, [pairs[index] for index in batch], engine)
        made |= zip([places[index] for index in batch], aligned, strict=True)
    return [
        replace(
            translation,
            hypotheses=tuple(
                replace(each, alignment=made.get((number, rank))) for rank, each in enumerate(translation.hypotheses)
            ),
        )
        for number, translation in enumerate(translations)
    ]


ProgressCallback = Callable[[str], None]
"""Called with the part of a line's target that is final; each time with more than before."""


class ProgressReporter:
    """Reports the final part of the targets of some lines while they are searched.

    The text is that of `Translation.text`: whole characters, pieces joined as they will be, without white space at the
    end, which may still change. Lines without a callback cost nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, plans: Sequence[LinePlan], callbacks: Mapping[int, ProgressCallback]
    ) -> None:
        """tokenizer: of the target.  callbacks: by the number of a line in `plans`."""
        self._tokenizer = tokenizer
        lines = [_LineProgress(plan, callbacks.get(plan.line.number)) for plan in plans]
        # For each piece of all plans, in order: its line, and its place there.
        self._places = [
            (line, place) for line, plan in zip(lines, plans, strict=True) for place in range(len(plan.pieces))
        ]

    def observer(self, batch: Sequence[int], *, reranked: bool) -> "SearchObserver | None":
        """An observer for the search of a batch of pieces, by their places in all plans; None if none has a callback.

        reranked: whether the best target is chosen by something other than the search's score.
        """
        from translume.decoding import StablePrefix

        sentences = [number for number, index in enumerate(batch) if self._places[index][0].callback is not None]
        if not sentences:
            return None

        def report(sentence: int, ids: Sequence[int]) -> None:
            self.begin(batch[sentence], ids)

        return StablePrefix(report, sentences, reranked=reranked)

    def begin(self, index: int, ids: Sequence[int]) -> None:
        """Report the ids with which the target of a piece begins.  index: its place in all plans."""
        line, place = self._places[index]
        line.update(place, self._tokenizer.beginning(ids), complete=False)

    def complete(self, index: int, hypotheses: Sequence[TextHypothesis]) -> None:
        """Report the whole target of a piece, the best of its hypotheses.  index: its place in all plans."""
        if hypotheses:
            line, place = self._places[index]
            line.update(place, hypotheses[0].text, complete=True)


class _LineProgress:
    """The final parts of the targets of a line's pieces."""

    def __init__(self, plan: LinePlan, callback: ProgressCallback | None) -> None:
        self.callback = callback
        self._pieces = plan.pieces
        self._breaks = _LINE_BREAKS.search(plan.line.text) is not None
        self._texts = [None if not piece.ids else "" for piece in plan.pieces]
        self._complete = [not piece.ids for piece in plan.pieces]
        self._joined, self._text, self._current = _JoinedText(), "", 0
        """The targets of the pieces before the current one, which are complete."""
        self._reported = 0
        if plan.pieces[0].kept:
            self.update(0, plan.pieces[0].text, complete=True)

    def update(self, place: int, text: str, *, complete: bool) -> None:
        """Keep the final part of a piece's target, and report the line's if it has grown."""
        if self.callback is None:
            return
        self._texts[place], self._complete[place] = text, complete
        while self._current < len(self._pieces) - 1 and self._complete[self._current]:
            self._text += self._joined.add(self._pieces[self._current], self._texts[self._current])
            self._current += 1
        if place > self._current:
            return
        begun = self._text + copy(self._joined).add(self._pieces[self._current], self._texts[self._current])
        begun = (begun if self._breaks else _on_one_line(begun)).rstrip()
        if len(begun) > self._reported:
            self._reported = len(begun)
            self.callback(begun)
