"""Text in, text out."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import (
    Checkpoint,
    ClassifierCheckpoint,
    load_any,
    load_checkpoint,
    load_classifier_checkpoint,
)
from translume.config import Config, DecodingSettings
from translume.decoding import Hypothesis, SearchError, strategy_from
from translume.engine import Engine, build_engine
from translume.errors import SettingsError
from translume.translator.batching import SHORTEST, WIDE, batches, windows
from translume.translator.classifier import Classifier
from translume.translator.plan import Line, LineError, Plan, finish, plan_line
from translume.translator.risk import least_risk
from translume.translator.scoring import ScoredPair, beliefs_of_pairs, score_pairs
from translume.translator.searching import search_pieces
from translume.translator.values import TargetScore, TextHypothesis, Translation


class Translator:
    """A model ready for use. It is never changed by a call, so threads may share it."""

    def __init__(self, checkpoint: Checkpoint, engine: Engine | None = None) -> None:
        """checkpoint: its model is used as it is, in the mode (training or evaluation) that it is in.

        engine: what steps instead of the plain model when texts are translated; see `compile`.
        """
        self.checkpoint, self.engine = checkpoint, engine

    @property
    def config(self) -> Config:
        """The settings the model came with."""
        return self.checkpoint.config

    def compile(self, dtype: Literal["fp32", "bf16", "int8"] = "fp32") -> "Translator":
        """A translator of the same model whose search runs on weights packed for this machine.

        dtype: of the packed weights; beliefs are fp32, and forced decoding (`score`) stays with the plain model.
        Raises EngineError (a SettingsError) where the model or the machine has no engine.
        """
        return Translator(self.checkpoint, build_engine(self.checkpoint.model, dtype))

    def translate(
        self,
        text: str,
        *,
        settings: DecodingSettings | None = None,
        strategy: str | None = None,
        beam: int | None = None,
        nbest: int | None = None,
        length_penalty: float | None = None,
    ) -> Translation:
        """The translation of one text, which may have many sentences; a blank one has an empty translation.

        settings: instead of the model's own [decoding]; the other options replace single ones of them.
        Raises TranslationError if a sentence is longer than the model reads, SettingsError if the options do not fit.
        """
        chosen = self._choose(settings, strategy=strategy, beam=beam, nbest=nbest, length_penalty=length_penalty)
        return self._window([Line(number=0, text=text)], chosen)[0]

    def translate_all(
        self,
        texts: Iterable[str],
        *,
        settings: DecodingSettings | None = None,
        strategy: str | None = None,
        beam: int | None = None,
        nbest: int | None = None,
        length_penalty: float | None = None,
    ) -> Iterator[Translation]:
        """One translation a text, in order, whatever the number of texts; see `translate` for the options.

        A line break at the end of a text (of a file's line) is no part of it. Texts are read some thousand ahead.
        Errors name the number of the text as its line, after all texts before it were given back.
        """
        if isinstance(texts, str):
            raise TypeError("translate_all wants many texts, found one; use translate")
        chosen = self._choose(settings, strategy=strategy, beam=beam, nbest=nbest, length_penalty=length_penalty)
        return self._stream(texts, chosen)

    def score(self, source: str, target: str | TextHypothesis) -> TargetScore:
        """The log-probability of `target` given `source`, in nats: a text with its end mark, or a hypothesis as found.

        A text is cut into tokens anew, which need not be the tokens a search wrote it with; a hypothesis keeps its own.
        """
        return self._score([ScoredPair(place="pair", source=source, target=target)])[0]

    def score_all(self, pairs: Iterable[tuple[str, str | TextHypothesis]]) -> Iterator[TargetScore]:
        """One score a pair, in order; see `score`."""
        for window in windows(_numbered(pairs)):
            yield from self._score(window)

    def beliefs(
        self, pairs: Iterable[tuple[str, str | TextHypothesis]], *, rows: int | None = None
    ) -> Iterator[tuple[NextToken, Tensor]]:
        """What the model believed about every token of every target, end marks too, and which tokens [m] these are.

        Forced decoding, at most `rows` tokens at a time (None: as fit into memory); by length, not in the pairs' order.
        """
        for window in windows(_numbered(pairs)):
            yield from beliefs_of_pairs(self.checkpoint, window, self.config.decoding.max_tokens, rows)

    def _choose(self, settings: DecodingSettings | None, **options: str | float | None) -> DecodingSettings:
        """Settings with what was given instead; checked here, before any text is read."""
        chosen = settings or self.config.decoding
        given = {name: value for name, value in options.items() if value is not None}
        if given:
            values = {"decoding": {**chosen.model_dump(), **given}}
            chosen = Config.build(values, place="translate").decoding
        strategy_from(chosen)
        if chosen.calibrated and self.checkpoint.temperature is None:
            raise SettingsError(
                "decoding.calibrated: no temperature was fitted to the model's weights; "
                "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one"
            )
        head = self.checkpoint.model.head
        if chosen.unsmooth and not (head.exact_smoothing and head.normalised and head.full_support):
            kind = self.checkpoint.config.model.head.kind
            raise SettingsError(
                f"decoding.unsmooth: found {chosen.unsmooth}, wanted 0 with model.head.kind = '{kind}', "
                "which does not spread label smoothing evenly"
            )
        return chosen

    def _stream(self, texts: Iterable[str], settings: DecodingSettings) -> Iterator[Translation]:
        for window in windows(numbered_lines(texts)):
            yield from self.translate_lines(window, settings)

    def translate_lines(self, lines: Sequence[Line], settings: DecodingSettings) -> Iterator[Translation]:
        """The translations of consecutive lines, which are translated together, in order.

        An error names the number of its line, after all lines before it were given back.
        """
        try:
            done = self._window(lines, settings)
        except LineError as error:
            yield from self.translate_lines(lines[: error.line.number - lines[0].number], settings)
            raise error from None
        yield from done

    def _window(self, lines: Sequence[Line], settings: DecodingSettings) -> list[Translation]:
        """The translations of some lines, translated in batches of like lengths."""
        plans = self._plans(lines, settings)
        pieces = [(plan, piece) for plan in plans for piece in plan.pieces]
        wanted = [index for index, (_, piece) in enumerate(pieces) if piece.ids]
        found: list[list[TextHypothesis]] = [[] for _ in pieces]
        lengths = [len(pieces[index][1].ids) + 1 for index in wanted]
        width = strategy_from(settings).width
        ranked = settings.utility != "none" and width > 1
        search = settings.model_copy(update={"nbest": width}) if ranked else settings
        for batch in batches(lengths, settings.max_tokens * WIDE // max(width, WIDE), shortest=SHORTEST):
            chosen = [wanted[place] for place in batch]
            try:
                results = search_pieces(self.checkpoint, [pieces[index][1] for index in chosen], search, self.engine)
            except SearchError as error:
                line = pieces[chosen[error.sentence]][0].line
                raise LineError(line, f"token {error.token}: {error.reason}") from None
            for index, hypotheses in zip(chosen, results, strict=True):
                read = [self._read(hypothesis) for hypothesis in hypotheses]
                found[index] = least_risk(read, settings.utility, settings.nbest) if ranked else read
        rest = iter(found)
        return [finish(plan, [next(rest) for _ in plan.pieces], settings.nbest) for plan in plans]

    def _plans(self, lines: Sequence[Line], settings: DecodingSettings) -> list[Plan]:
        tokenizer = self.checkpoint.source_tokenizer
        limit = self.config.model.max_positions - 1
        encoded = tokenizer.encode_all(["" if line.text.isspace() else line.text for line in lines])
        return [
            plan_line(line, ids, tokenizer, limit, settings.max_length_action)
            for line, ids in zip(lines, encoded, strict=True)
        ]

    def _read(self, hypothesis: Hypothesis) -> TextHypothesis:
        tokenizer = self.checkpoint.target_tokenizer
        return TextHypothesis(
            text=tokenizer.decode(hypothesis.tokens),
            tokens=tuple(tokenizer.tokens(hypothesis.tokens)),
            ids=hypothesis.tokens,
            log_prob=hypothesis.log_prob,
            token_log_probs=hypothesis.log_probs,
            score=hypothesis.score,
            finished_by=hypothesis.finished_by,
        )

    def _score(self, pairs: Sequence[ScoredPair]) -> list[TargetScore]:
        return score_pairs(self.checkpoint, pairs, self.config.decoding.max_tokens)


def load(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    threads: int | None = None,
) -> Translator | Classifier:
    """The translator or the classifier in a model folder.

    device: "auto" is CUDA where there is one.  dtype: "auto" is bf16 on CUDA, fp32 elsewhere.
    threads: how many torch takes, for the whole process; None leaves that as it is.
    Raises ModelFolderError if the folder is no model, is damaged or was written by a newer Translume.
    """
    _take(threads)
    found = load_any(folder, device=device, dtype=dtype)
    return Classifier(found) if isinstance(found, ClassifierCheckpoint) else Translator(found)


def load_translator(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    threads: int | None = None,
) -> Translator:
    """The translator in a model folder, as `load` gives it; ModelFolderError if it holds a classifier."""
    _take(threads)
    return Translator(load_checkpoint(folder, device=device, dtype=dtype))


def load_classifier(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    threads: int | None = None,
) -> Classifier:
    """The classifier in a model folder, as `load` gives it; ModelFolderError if it holds a translator."""
    _take(threads)
    return Classifier(load_classifier_checkpoint(folder, device=device, dtype=dtype))


def _take(threads: int | None) -> None:
    """Have torch compute with so many threads; None leaves that as it is."""
    if threads is not None:
        if threads < 1:
            raise SettingsError(f"threads: found {threads}, wanted at least 1")
        torch.set_num_threads(threads)


def numbered_lines(texts: Iterable[str]) -> Iterator[tuple[Line, int]]:
    """Texts as lines, counted from 1, with their sizes, as `windows` wants them; a break at an end is no part of it."""
    for number, text in enumerate(texts, start=1):
        yield Line(number=number, text=_without_break(text)), len(text)


def _without_break(text: str) -> str:
    """A line of a file without its end."""
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def _target(target: str | TextHypothesis) -> str | TextHypothesis:
    return _without_break(target) if isinstance(target, str) else target


def _numbered(pairs: Iterable[tuple[str, str | TextHypothesis]]) -> Iterator[tuple[ScoredPair, int]]:
    """Pairs with their lines and sizes, as `windows` wants them."""
    for number, (source, target) in enumerate(pairs, start=1):
        yield ScoredPair(place=f"line {number}", source=_without_break(source), target=_target(target)), len(source)
