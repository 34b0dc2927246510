"""Inputs of inspections: validated sources and targets as ids, tokens and words; searches with a forced prefix."""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import ForcedPrefix, Hypothesis, Rule, SearchError, best_of, strategy_from
from translume.errors import SettingsError, TranslationError, check_known
from translume.inspection.passes import Sentence
from translume.inspection.values import Token, Word
from translume.lazy import inference_mode, torch
from translume.sources import describe
from translume.text import Tokenizer
from translume.text.segmentation import character_class
from translume.text.specials import UNKNOWN_LANGUAGE
from translume.translator import TextHypothesis, Translator
from translume.translator.constraints import build_rules
from translume.translator.planning import Piece, Reading, Tags, frames_piece, padded_sources
from translume.translator.search import PreparedSearch, prepare_search, target_limit
from translume.translator.speech import detected_languages
from translume.translator.translator import Source


def check_parts(k: int, show: Collection[str], known: Sequence[str]) -> None:
    """Raise SettingsError for a k below 1, or for a part of a trace that is not among `known`."""
    if k < 1:
        raise SettingsError(f"k: found {k}, expected at least 1")
    for part in show:
        check_known("show", part, known)


def special_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of the special tokens without text."""
    return *sorted(tokenizer.specials.marks), *tokenizer.languages.values()


def tokens_of(tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[Token, ...]:
    """Return the tokens of `ids` with their characters.

    spans: of the first ids; the ids after them, such as an added EOS, have no characters.
    """
    last = max((end for _, end in spans), default=0)
    places = [*spans, *[(last, last)] * (len(ids) - len(spans))]
    return tuple(
        Token(id=id_, text=text, begin=begin, end=end)
        for id_, text, (begin, end) in zip(ids, tokenizer.tokens(ids), places, strict=True)
    )


def joined(tokens: Sequence[Token], positions: Sequence[int]) -> tuple[Token, ...]:
    """Return one token for each position of the encoder, with the texts of its tokens and the id of the first.

    positions: of each token, ascending; see `passes.positions_in`.
    """
    parts = [[token for token, _ in group] for _, group in groupby(zip(tokens, positions, strict=True), itemgetter(1))]
    return tuple(
        Token(id=part[0].id, text="".join(token.text for token in part), begin=part[0].begin, end=part[-1].end)
        for part in parts
    )


def words_of(
    text: str, tokens: Sequence[Token], marks: Container[int], log_probs: Sequence[float] | None = None
) -> tuple[Word, ...]:
    """Join the tokens of a text to words.

    marks: ids of special tokens; each is a word of its own.  log_probs: one per token, summed by word.
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
    own, previous = text[token.begin : token.end], text[before.begin : before.end]
    if own.startswith(" "):
        return True
    if not own or not previous or token.begin < before.end or previous.isspace():
        return False  # no text, part of a character, or the space before this word
    return "unspaced" in (character_class(own[0]), character_class(previous[-1]))


def name_of(source: Source) -> str:
    """Return a text or a path as it is, and a description of another source."""
    return str(source) if isinstance(source, str | Path) else describe(source)


def without_default_engine(translator: Translator) -> Translator:
    """Return the translator with the plain model in place of an engine that was only chosen by default.

    The command line and the server inspect the plain model too, so all give the same numbers. An engine from `compile`
    or `load(engine="fast")` stays.
    """
    return Translator(translator.checkpoint, fusion=translator.fusion) if translator.has_default_engine else translator


def single_model(translator: Translator) -> Translator:
    """Return `without_default_engine(translator)`; raise SettingsError for an ensemble or with a language model."""
    if not isinstance(translator, Translator):
        found = type(translator).__name__
        raise TypeError(f"translator: found {found}, expected a Translator; call translume.load(folder)")
    if len(translator.models) > 1:
        raise SettingsError(
            f"inspection: found an ensemble of {len(translator.models)} models, expected one model; "
            "inspect each model separately"
        )
    if translator.fusion is not None:
        raise SettingsError("inspection: found a translator with a language model, expected one without")
    return without_default_engine(translator)


def encoded_source(checkpoint: Checkpoint, source: Source, settings: DecodingSettings) -> Piece:
    """Return a source as one piece, with the tags of the direction in `settings`.

    Raises TranslationError if it is blank or too long, DataError for a file that cannot be read.
    """
    reading = Reading.from_settings(checkpoint, settings)
    if reading.reader is not None:
        return _encoded_frames(checkpoint, source, settings, reading)
    ids = checkpoint.source_tokenizer.encode("" if isinstance(source, str) and source.isspace() else source)
    if not ids:
        raise TranslationError("source: found a blank text, expected a sentence")
    tags, (read, warnings) = reading.tags, reading.cut_line(ids)
    check_length(checkpoint, "source", (*tags.source, *read, *checkpoint.source_tokenizer.specials.source_end))
    return Piece(ids=tuple(read), source_tags=tags.source, target_tags=tags.target, warnings=warnings)


def _encoded_frames(checkpoint: Checkpoint, source: Source, settings: DecodingSettings, reading: Reading) -> Piece:
    """Return a non-text source; for a model that reads windows, at most one."""
    assert reading.reader is not None
    if settings.timestamps:
        raise SettingsError("inspection: found decoding.timestamps = true, expected false")
    piece = frames_piece(reader=reading.reader, source=source, limit=reading.limit)
    count, window = 0 if piece.frames is None else len(piece.frames), reading.reader.settings.window
    if not count:
        raise TranslationError(f"source: {name_of(source)}: found no frames, expected at least one")
    if window and count > window:
        raise TranslationError(
            f"source: {name_of(source)}: {count:,} frames, expected at most {window:,}, one window; inspect parts of it"
        )
    piece = replace(piece, target_tags=reading.tags.target)
    if UNKNOWN_LANGUAGE in piece.target_tags:
        with inference_mode():
            device = next(checkpoint.model.parameters()).device
            encoded = checkpoint.model.start(*padded_sources([piece], checkpoint.source_tokenizer.specials, device))
        (language,) = detected_languages(checkpoint, checkpoint.model, encoded, 1)
        tokens = checkpoint.target_tokenizer.vocabulary.speech_tokens()
        piece = replace(piece, target_tags=tokens.with_language(piece.target_tags, language))
    return piece


def check_length(checkpoint: Checkpoint, side: str, ids: tuple[int, ...]) -> None:
    """Raise TranslationError if a side is longer than the model reads."""
    config = checkpoint.config
    longest = config.model.max_positions - config.model.target_tags if side == "target" else config.longest_source
    if len(ids) > longest:
        raise TranslationError(
            f"{side}: found {len(ids):,} tokens with EOS, expected at most {longest:,}; inspect one sentence at a time"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceSearch:
    """Searches of one source, optionally with a forced prefix of ids.  text: the source, or its name."""

    translator: Translator
    text: str
    piece: Piece
    settings: DecodingSettings

    @classmethod
    def from_source(cls, translator: Translator, source: Source, settings: DecodingSettings | None) -> "SentenceSearch":
        """Encode the source; see `encoded_source`."""
        translator = without_default_engine(translator)
        chosen = settings or translator.config.decoding
        translator.check(chosen)
        piece = encoded_source(translator.checkpoint, source, chosen)
        return cls(translator=translator, text=name_of(source), piece=piece, settings=chosen)

    @property
    def checkpoint(self) -> Checkpoint:
        """The model and its tokenizers."""
        return self.translator.checkpoint

    def sentence(self, target: Sequence[int]) -> Sentence:
        """Return the source and the ids of a target as tensors."""
        specials, device = self.checkpoint.source_tokenizer.specials, next(self.checkpoint.model.parameters()).device
        source, _ = padded_sources([self.piece], specials, device)
        tags = Tags(source=self.piece.source_tags, target=self.piece.target_tags)
        labels = torch.tensor(list(target), device=device)
        return Sentence(source[0], labels, self.checkpoint.target_tokenizer.specials.bos, tags)

    @inference_mode()
    def prepare(self, prefixes: Sequence[Sequence[int]] = ((),), *, greedy: bool = False) -> PreparedSearch:
        """Prepare searches, by the translator's engine: one for each prefix of ids, with which its targets begin."""
        settings = self.settings
        if greedy:
            settings = settings.model_copy(update={"strategy": "beam", "beam": 1, "nbest": 1})
        stepper = self.translator.models.stepper(attentive=strategy_from(settings).coverage is not None)
        ready = prepare_search(self.checkpoint, [self.piece] * len(prefixes), settings, stepper, self.translator.fusion)
        if not any(prefixes):
            return ready
        # Keep the limit of the inspected search, but allow scoring a whole target that is longer.
        limits = np.maximum(ready.limits, [len(prefix) for prefix in prefixes])
        return replace(ready, limits=limits, rules=[*ready.rules, ForcedPrefix(prefixes)])

    def best(self, prefix: Sequence[int] = (), *, greedy: bool = False) -> Hypothesis:
        """Return the best target by score that begins with `prefix`; raise TranslationError if rules forbid all."""
        try:
            ready = self.prepare([prefix], greedy=greedy)
            return best_of(ready.beams(), ready.strategy, 1)[0][0]
        except SearchError as error:
            raise TranslationError(f"target: token {error.token}: {error.reason}") from None

    def best_of_each(self, prefixes: Sequence[Sequence[int]], *, greedy: bool = False) -> list[Hypothesis | None]:
        """Return the same as `best` for each prefix, None if rules forbid all targets. The searches run together."""
        possible = list(range(len(prefixes)))
        best: dict[int, Hypothesis] = {}
        while possible and not best:
            try:
                ready = self.prepare([prefixes[number] for number in possible], greedy=greedy)
                hypotheses = best_of(ready.beams(), ready.strategy, len(possible))
            except SearchError as error:
                del possible[error.sentence]
            else:
                best = {number: each[0] for number, each in zip(possible, hypotheses, strict=True)}
        return [best.get(number) for number in range(len(prefixes))]

    def forced(self, ids: Sequence[int]) -> Hypothesis | None:
        """Score a whole target, EOS included, as the search would; None if rules forbid it."""
        (hypothesis,) = self.best_of_each([ids], greedy=True)
        return hypothesis if hypothesis is not None and hypothesis.tokens == tuple(ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInputs:
    """The target to trace, and the search of its source with the settings that it is compared with.

    target: its ids, which end with EOS if `finished_by` is "eos".
    """

    search: SentenceSearch
    target: tuple[int, ...]
    origin: Literal["search", "given"]
    finished_by: Literal["eos", "length"]

    @property
    def source(self) -> tuple[int, ...]:
        """The ids of a text, with tags and EOS, if the model reads one."""
        return (*self.search.piece.read_ids, *self.search.checkpoint.source_tokenizer.specials.source_end)

    def source_spans(self) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of the normalised text for each of `source` but EOS."""
        checkpoint, piece = self.search.checkpoint, self.search.piece
        reading = Reading.from_settings(checkpoint, self.search.settings)
        spans, _ = reading.cut_line(checkpoint.source_tokenizer.spans_in(self.search.text))
        return [(0, 0)] * len(piece.source_tags) + list(spans)

    def sentence(self) -> Sentence:
        """Return source and target as tensors."""
        return self.search.sentence(self.target)

    def rules(self) -> list[Rule]:
        """Return the decoding rules of the settings."""
        return build_rules(self.search.checkpoint.target_tokenizer, [bool(self._prefix())], self.search.settings)

    def limit(self) -> int:
        """Return the length limit of the search, or the length of the target if that is larger."""
        search = self.search
        limit = target_limit(search.checkpoint, len(search.piece.ids), len(self._prefix()), search.settings)
        return max(limit, len(self.target))

    def _prefix(self) -> list[int]:
        return self.search.checkpoint.target_tokenizer.encode(self.search.settings.prefix)


def trace_inputs(
    translator: Translator, source: Source, target: str | TextHypothesis | None, settings: DecodingSettings | None
) -> TraceInputs:
    """Encode a source and its target: a text, a hypothesis, or (None) the model's own translation.

    Raises TranslationError for a blank source, for a target without tokens, and if a side is longer than the model
    reads: a line is always inspected as a whole. Raises DataError for a file that cannot be read.
    """
    search = SentenceSearch.from_source(single_model(translator), source, settings)
    checkpoint = search.checkpoint
    origin: Literal["search", "given"] = "given"
    if target is None:
        origin = "search"
        unsplit = search.settings.model_copy(update={"split": "never"})
        hypotheses = search.translator.translate(source, settings=unsplit).hypotheses
        if not hypotheses:
            raise TranslationError("source: found digital silence, expected speech")
        target = hypotheses[0]
    eos = checkpoint.target_tokenizer.specials.eos
    if not isinstance(target, str | TextHypothesis):
        raise TypeError(f"target: found {type(target).__name__}, expected a string, a hypothesis or None")
    labels = (*checkpoint.target_tokenizer.encode(target), eos) if isinstance(target, str) else target.ids
    if not labels or eos in labels[:-1]:
        raise TranslationError(
            "target: the hypothesis was joined from several parts; expected one of a single sentence; "
            'split = "never" translates a text as one'
        )
    check_length(checkpoint, "target", labels)
    return TraceInputs(
        search=search, target=labels, origin=origin, finished_by="eos" if labels[-1] == eos else "length"
    )
