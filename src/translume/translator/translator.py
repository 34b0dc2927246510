"""Text in, text out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import (
    Checkpoint,
    load_any,
    load_checkpoint,
    load_classifier_checkpoint,
    refuse_threads,
)
from translume.config import Config, DecodingSettings
from translume.decoding import (
    Average,
    Fusion,
    LanguageModel,
    SearchError,
    strategy_from,
)
from translume.engine import Engine
from translume.errors import SettingsError
from translume.tasks import task_of
from translume.translator.batching import SHORTEST, WIDE, batches, windows
from translume.translator.classifier import Classifier
from translume.translator.constraining import constrained, search_constrained
from translume.translator.constraining import width as constrained_width
from translume.translator.constraints import STRATEGIES as CONSTRAINABLE
from translume.translator.constraints import refuse_unfit
from translume.translator.ensemble import Member, Models, face_of, together
from translume.translator.finishing import finished
from translume.translator.numbering import numbered_lines, numbered_pairs
from translume.translator.plan import Line, LineError, Piece, Plan, plan_line
from translume.translator.progress import Progress, Tell, while_wanted
from translume.translator.rules import check_rules
from translume.translator.scoring import ScoredPair, beliefs_of_pairs, score_pairs
from translume.translator.searching import search_pieces
from translume.translator.terminology import Terminology
from translume.translator.values import TargetScore, TextHypothesis, Translation
from translume.translator.wanted import Wanted


class Translator:
    """A model ready for use. It is never changed by a call, so threads may share it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: Engine | None = None,
        *,
        models: Models | None = None,
        fusion: Fusion | None = None,
    ) -> None:
        """checkpoint: its model is used as it is, in the mode (training or evaluation) that it is in.

        engine: what steps instead of the plain model when texts are translated; see `compile`.  models: all that are
        averaged, the checkpoint's own first; see `ensemble_with`.  fusion: see `fuse_with`.
        """
        self.checkpoint, self.engine = checkpoint, engine
        self.models = models or Models(members=(Member(checkpoint=checkpoint, engine=engine),))
        self.fusion = fusion

    @property
    def config(self) -> Config:
        """The settings the model came with."""
        return self.checkpoint.config

    def compile(self, dtype: Literal["fp32", "bf16", "int8"] = "fp32") -> "Translator":
        """A translator of the same model whose search runs on weights packed for this machine.

        dtype: of the packed weights; beliefs are fp32, and forced decoding (`score`) stays with the plain model.
        Raises EngineError (a SettingsError) where the model or the machine has no engine.
        """
        models = self.models.compiled(dtype)
        engine = models.members[0].engine
        return Translator(self.checkpoint, engine, models=models, fusion=self.fusion)

    def ensemble_with(self, *others: "Translator", average: Average = "probability") -> "Translator":
        """A translator that goes by the mean belief of this one and others, next token for next token.

        average: "probability" is the mean of probabilities, "log_probability" that of log-probabilities, normalised.
        Its settings are this one's; it reads as much as the model that reads least. Its scores are the ensemble's.
        Raises SettingsError unless all have the same tokenizers and stand on the same device.
        """
        models = together([self.models, *(other.models for other in others)], average)
        return Translator(face_of(models), self.engine, models=models, fusion=self.fusion)

    def fuse_with(self, model: LanguageModel, weight: float) -> "Translator":
        """A translator whose search ranks by log p + weight · log p_lm (shallow fusion), weight above 0.

        `log_prob`, here and from `score`, stays the translator's own.
        """
        fusion = Fusion(model, weight)
        return Translator(self.checkpoint, self.engine, models=self.models, fusion=fusion)

    def translate(
        self,
        text: str,
        *,
        settings: DecodingSettings | None = None,
        strategy: str | None = None,
        beam: int | None = None,
        nbest: int | None = None,
        length_penalty: float | None = None,
        constraints: Iterable[str] = (),
    ) -> Translation:
        """The translation of one text, which may have many sentences; a blank one has an empty translation.

        settings: instead of the model's own [decoding]; the other options replace single ones of them.
        constraints: words and phrases that it must hold; a warning, `constraint_unmet: …`, says why it cannot.
        Raises TranslationError if a sentence is longer than the model reads, SettingsError if the options do not fit.
        """
        chosen = self._choose(settings, strategy=strategy, beam=beam, nbest=nbest, length_penalty=length_penalty)
        if not isinstance(text, str):
            raise TypeError(f"translate wants one text (str), found {type(text).__name__}; translate_all takes many")
        lines = [line for line, _ in numbered_lines([text], [constraints])]
        return self._window([replace(lines[0], number=0, text=text)], chosen)[0]

    def translate_all(
        self,
        texts: Iterable[str],
        *,
        settings: DecodingSettings | None = None,
        strategy: str | None = None,
        beam: int | None = None,
        nbest: int | None = None,
        length_penalty: float | None = None,
        constraints: Iterable[Iterable[str]] | None = None,
    ) -> Iterator[Translation]:
        """One translation a text, in order, whatever the number of texts; see `translate` for the options.

        constraints: those of each text, in order; there must be as many lists of them as texts.
        A line break at the end of a text (of a file's line) is no part of it. Texts are read some thousand ahead.
        Errors name the number of the text as its line, after all texts before it were given back.
        """
        if isinstance(texts, str):
            raise TypeError("translate_all wants many texts, found one; use translate")
        chosen = self._choose(settings, strategy=strategy, beam=beam, nbest=nbest, length_penalty=length_penalty)
        return self._stream(numbered_lines(texts, constraints), chosen)

    def score(self, source: str, target: str | TextHypothesis) -> TargetScore:
        """The log-probability of `target` given `source`, in nats: a text with its end mark, or a hypothesis as found.

        A text is cut into tokens anew, which need not be the tokens a search wrote it with; a hypothesis keeps its own.
        """
        if not isinstance(source, str) or not isinstance(target, str | TextHypothesis):
            found = f"{type(source).__name__} and {type(target).__name__}"
            raise TypeError(f"score wants a source and a target, found {found}; score_all takes many pairs")
        return self._score([ScoredPair(place="pair", source=source, target=target)])[0]

    def score_all(self, pairs: Iterable[tuple[str, str | TextHypothesis]]) -> Iterator[TargetScore]:
        """One score a pair, in order; see `score`."""
        for window in windows(numbered_pairs(pairs)):
            yield from self._score(window)

    def beliefs(
        self, pairs: Iterable[tuple[str, str | TextHypothesis]], *, rows: int | None = None
    ) -> Iterator[tuple[NextToken, Tensor]]:
        """What the model believed about every token of every target, end marks too, and which tokens [m] these are.

        Forced decoding, at most `rows` tokens at a time (None: as fit into memory); by length, not in the pairs' order.
        """
        for window in windows(numbered_pairs(pairs)):
            most = self.config.decoding.max_tokens
            for found in beliefs_of_pairs(self.checkpoint, window, most, rows, self.models):
                yield found.belief, found.labels

    def _choose(self, settings: DecodingSettings | None, **options: str | float | None) -> DecodingSettings:
        """Settings with what was given instead; checked here, before any text is read."""
        if settings is not None and not isinstance(settings, DecodingSettings):
            raise TypeError(f"settings: found {type(settings).__name__}, wanted DecodingSettings or None")
        chosen = settings or self.config.decoding
        given = {name: value for name, value in options.items() if value is not None}
        if given:
            values = {"decoding": {**chosen.model_dump(), **given}}
            chosen = Config.build(values, place="translate").decoding
        self.check(chosen)
        return chosen

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError where settings do not fit each other, or ask for what this model has not."""
        strategy_from(settings)
        self._terminology(settings)
        check_rules(self.checkpoint.target_tokenizer, settings)
        if settings.calibrated and len(self.models) > 1:
            raise SettingsError(
                "decoding.calibrated: a temperature is fitted to one model, "
                f"wanted calibrated = false for {len(self.models)} of them"
            )
        if settings.calibrated and self.checkpoint.temperature is None:
            raise SettingsError(
                "decoding.calibrated: no temperature was fitted to the model's weights; "
                "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one"
            )
        for member in self.models.members:
            head, config = member.checkpoint.model.head, member.checkpoint.config
            over = config.training.label_smoothing_over
            if not settings.unsmooth:
                continue
            if not (head.exact_smoothing and head.normalised and head.full_support):
                what = f"model.head.kind = '{config.model.head.kind}', which does not spread label smoothing evenly"
            elif over != "all":
                what = f"training.label_smoothing_over = '{over}', which does not spread it over all tokens"
            else:
                continue
            raise SettingsError(f"decoding.unsmooth: found {settings.unsmooth}, wanted 0 with {what}")

    def _stream(self, lines: Iterable[tuple[Line, int]], settings: DecodingSettings) -> Iterator[Translation]:
        for window in windows(lines):
            yield from self.translate_lines(window, settings)

    def translate_lines(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        tell: Mapping[int, Tell] | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> Iterator[Translation]:
        """The translations of consecutive lines, which are translated together, in order.

        tell: by the number of a line, who is told what its target begins with while it is searched; see `Progress`.
        go_on: is called before a search, and after each of its steps but where constraints are searched for; what it
        raises ends all of them.
        An error names the number of its line, after all lines before it were given back.
        """
        try:
            done = self._window(lines, settings, tell, go_on)
        except LineError as error:
            yield from self.translate_lines(lines[: error.line.number - lines[0].number], settings, tell, go_on)
            raise error from None
        yield from done

    def _window(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        tell: Mapping[int, Tell] | None = None,
        go_on: Callable[[], None] | None = None,
    ) -> list[Translation]:
        """The translations of some lines, translated in batches of like lengths."""
        plans = self.plans(lines, settings)
        pieces = [(plan, piece) for plan in plans for piece in plan.pieces]
        found: list[list[TextHypothesis]] = [[] for _ in pieces]
        warnings: list[tuple[str, ...]] = [() for _ in pieces]
        wanted = Wanted.of(settings)
        search, stepper = wanted.search, self.models.stepper(attentive=wanted.attentive)
        progress = Progress(self.checkpoint.target_tokenizer, plans, tell or {})
        for chosen in self._batches([piece for _, piece in pieces], settings, wanted.width):
            searched = [pieces[index][1] for index in chosen]
            if go_on is not None:
                go_on()
            try:
                if searched[0].constraints:
                    held = search_constrained(self.checkpoint, searched, search, stepper, self.fusion)
                    results = [each.hypotheses for each in held]
                    for index, each in zip(chosen, held, strict=True):
                        warnings[index] = each.warnings
                else:
                    watch = while_wanted(progress.watch(chosen, ranked_anew=wanted.ranked), go_on)
                    results = search_pieces(self.checkpoint, searched, search, stepper, self.fusion, watch)
            except SearchError as error:
                line = pieces[chosen[error.sentence]][0].line
                raise LineError(line, f"token {error.token}: {error.reason}") from None
            for index, hypotheses in zip(chosen, results, strict=True):
                found[index] = wanted.best(hypotheses, self.checkpoint.target_tokenizer)
                progress.found(index, found[index])
        return finished(self.checkpoint, plans, list(zip(found, warnings, strict=True)), settings)

    def _batches(self, pieces: Sequence[Piece], settings: DecodingSettings, width: int) -> Iterator[list[int]]:
        """Places of what there is to translate, in batches of like lengths.

        Those with constraints are apart, by how many hypotheses they keep; the others keep `width`.
        """
        wanted = [index for index, piece in enumerate(pieces) if piece.ids]
        widths = {
            index: constrained_width(pieces[index], self.checkpoint, settings) if pieces[index].constraints else 0
            for index in wanted
        }
        for kept in sorted(set(widths.values())):
            places = [index for index in wanted if widths[index] == kept]
            lengths = [len(pieces[index].ids) + 1 for index in places]
            most = settings.max_tokens * WIDE // max(kept or width, WIDE)
            for batch in batches(lengths, most, shortest=SHORTEST):
                yield [places[place] for place in batch]

    def plans(self, lines: Sequence[Line], settings: DecodingSettings) -> list[Plan]:
        """The lines in pieces that the model reads; LineError where one has none.  settings: see `check`."""
        tokenizer = self.checkpoint.source_tokenizer
        limit = self.config.model.max_positions - 1
        encoded = tokenizer.encode_all(["" if line.text.isspace() else line.text for line in lines])
        plans = [
            plan_line(line, ids, tokenizer, limit, settings.max_length_action)
            for line, ids in zip(lines, encoded, strict=True)
        ]
        terminology = self._terminology(settings)
        held = bool(settings.placeholders) and settings.strategy in CONSTRAINABLE  # the others only warn
        if terminology is None and not held and not any(line.constraints for line in lines):
            return plans
        refuse_unfit(settings)
        return [constrained(plan, self.checkpoint, settings, terminology) for plan in plans]

    def _terminology(self, settings: DecodingSettings) -> Terminology | None:
        """The terms of `decoding.terminology`; None where it names no file."""
        if not settings.terminology:
            return None
        refuse_unfit(settings)
        tokenizers = self.checkpoint.source_tokenizer, self.checkpoint.target_tokenizer
        return Terminology.read(settings.terminology, *tokenizers)

    def _score(self, pairs: Sequence[ScoredPair]) -> list[TargetScore]:
        return score_pairs(self.checkpoint, pairs, self.config.decoding.max_tokens, self.models)


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
    model: Translator | Classifier = task_of(found.config).part("user_class")(found)
    return model


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
    refuse_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)
