"""The translator, and the function that loads a model."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Generator as Steps
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

from translume.belief import NextToken
from translume.checkpoint import Checkpoint, model_folder, read_config, refuse_threads
from translume.config import DecodingOptions, DecodingSettings, Direction, Directions
from translume.decoding import Average, Fusion, LanguageModel, Stepper, strategy_from
from translume.errors import SettingsError, suggest_keywords
from translume.lazy import Tensor
from translume.parts import load_parts
from translume.tasks import task_of
from translume.translator.assembly import ProgressCallback, ProgressReporter, build_translations
from translume.translator.constraints import STRATEGIES as CONSTRAINABLE
from translume.translator.constraints import Terminology, check_rules, refuse_constraints
from translume.translator.ensemble import EnsembleMembers, combine, ensemble_checkpoint
from translume.translator.loading import ComputeOptions, Dtype, EngineName, LoadedModel, describe_engine
from translume.translator.planning import (
    Line,
    LineError,
    LinePlan,
    Reading,
    directions_of,
    numbered_lines,
    plan_lines,
    windows,
)
from translume.translator.results import Segment, TargetScore, TextHypothesis, Translation
from translume.translator.search import CancelCheck, SearchPlan, add_constraints, search_plans

if TYPE_CHECKING:
    from translume.translator.scoring import ScoredPair
    from translume.translator.speech import Transcriber

T = TypeVar("T")
Source = Any
"""A path, bytes, a NumPy array or a PIL image."""


class Translator(LoadedModel[Checkpoint]):
    """A model that translates. No call changes it, so threads may share it."""

    checkpoint_class = Checkpoint

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: Stepper | None = None,
        *,
        models: EnsembleMembers | None = None,
        fusion: Fusion | None = None,
    ) -> None:
        """checkpoint: its model is used in the mode, training or evaluation, that it is in.

        engine: searches instead of the plain model; see `compile`.  models: the models to average, the checkpoint's own
        first; see `ensemble_with`.  fusion: see `fuse_with`.
        """
        self.models = models or EnsembleMembers.from_checkpoint(checkpoint, engine)
        super().__init__(checkpoint, self.models.members[0].engine)
        self.fusion = fusion
        self._checked: DecodingSettings | None = None
        """The settings of the last call, if nothing outside them can make them invalid."""
        self._reading = lru_cache(16)(partial(Reading.from_settings, checkpoint))

    def _facts(self) -> tuple[str, list[str]]:
        model, directions = self.config.model, self.directions
        facts = [
            f"{model.encoder_layers}+{model.decoder_layers} layers",
            f"width {model.width}",
            f"{model.head.kind} head over {len(self.checkpoint.target_tokenizer):,} tokens",
            describe_engine(self._engine),
        ]
        if len(self.models) > 1:
            facts.append(f"ensemble of {len(self.models)}")
        return directions.describe() if directions.sources else "", facts

    @property
    def has_default_engine(self) -> bool:
        """Whether an engine searches that no option named."""
        options = self.options
        return self.engine is not None and options is not None and (options.engine, options.dtype) == ("auto", "auto")

    @property
    def reads_frames(self) -> bool:
        """Whether sources are recordings, images or arrays, rather than texts."""
        return bool(self.config.data.source.reader)

    @property
    def directions(self) -> Directions:
        """The directions that the model can translate."""
        return directions_of(self.checkpoint)

    def direction(self, *, to: str | None = None, from_: str | None = None) -> Direction:
        """The direction for codes of languages; None stands for those in [decoding], "" for the only one that fits.

        Raises SettingsError if the model does not have it, or if several remain.
        """
        default = self.config.decoding
        return self.directions.resolve(default.from_ if from_ is None else from_, default.to if to is None else to)

    def compile(self, dtype: Literal["fp32", "bf16", "int8"] = "fp32") -> "Translator":
        """A translator of the same model that searches with weights packed for this machine.

        dtype: of the packed weights. Log-probabilities are fp32. Forced decoding (`score`) uses them, too.
        Raises EngineError (a SettingsError) if there is no engine for the model or the machine.
        """
        compiled = Translator(self.checkpoint, models=self.models.compiled(dtype), fusion=self.fusion)
        return compiled.remember(self.folder, Translator.compile, self, dtype)

    def step_with(self, stepper: Stepper) -> "Translator":
        """A translator of the same model whose searches take the steps of `stepper`, as an `OnnxStepper`.

        stepper: it has the same vocabularies. A search that needs attention uses the plain model if the stepper returns
        none. Forced decoding (`score`) uses the plain model.
        Raises SettingsError for an ensemble.
        """
        if len(self.models) > 1:
            raise SettingsError("step_with: found an ensemble, expected one model")
        stepping = Translator(self.checkpoint, stepper, fusion=self.fusion)
        return stepping.remember(self.folder, Translator.step_with, self, stepper)

    def ensemble_with(self, *others: "Translator", average: Average = "probability") -> "Translator":
        """A translator that averages the distributions of this model and others at each step.

        average: "probability" is the mean of probabilities, "log_probability" that of log-probabilities, normalised.
        It has this translator's settings, and the shortest maximum length of all. Its scores are those of the ensemble.
        Raises SettingsError unless all have the same tokenizers and are on the same device.
        """
        models = combine([self.models, *(other.models for other in others)], average)
        ensemble = Translator(ensemble_checkpoint(models), models=models, fusion=self.fusion)
        return ensemble.remember(self.folder, partial(Translator.ensemble_with, average=average), self, *others)

    def fuse_with(self, model: LanguageModel, weight: float) -> "Translator":
        """A translator that ranks by log p + weight · log p_lm (shallow fusion).  weight: above 0.

        `log_prob`, also from `score`, remains the translator's own. Targets are at most as long as the context of a
        `Generator`. Raises SettingsError for a `Generator` of another target vocabulary and for another weight.
        """
        from translume.translator.generator import Generator

        if not all(callable(getattr(model, name, None)) for name in ("start", "step")):
            raise TypeError(f"fuse_with: found {type(model).__name__}, expected a Generator or another LanguageModel")
        if isinstance(model, Generator) and model.tokenizer.digest != self.checkpoint.target_tokenizer.digest:
            raise SettingsError(
                "fuse_with: the language model has another vocabulary, expected the translator's target tokenizer"
            )
        fused = Translator(self.checkpoint, models=self.models, fusion=Fusion(model, weight))
        return fused.remember(self.folder, Translator.fuse_with, self, model, weight)

    def translate(
        self,
        text: str | Source,
        *,
        settings: DecodingSettings | None = None,
        constraints: Iterable[str] = (),
        before: Iterable[tuple[str, str]] = (),
        **options: Unpack[DecodingOptions],
    ) -> Translation:
        """The translation of one text, which may have many sentences; a blank one has an empty translation.

        For a model of audio, images or features, `text` is a path, the bytes of a file, a NumPy array, or, for images,
        a PIL image.

        settings: instead of the model's own [decoding].
        options: single settings of `DecodingSettings`, which replace those of `settings`. `beam` chooses beam search,
        unless `strategy` is given too or the model's strategy uses a beam.
        constraints: words and phrases that it must hold; a warning, `constraint_unmet: …`, says why it cannot.
        before: the sources before it in its document and their translations, for a model that reads context.
        Raises TranslationError if a sentence is longer than the model reads, SettingsError if the options do not fit.
        """
        chosen = self._choose("translate", settings, options)
        if not self.reads_frames and not isinstance(text, str):
            raise TypeError(f"translate: found {type(text).__name__}, expected a string; translate_all takes many")
        line = replace(Line.from_source(text, constraints), before=tuple(before))
        return next(self.translate_lines([line], chosen))

    def segments(
        self, source: Source, *, settings: DecodingSettings | None = None, **options: Unpack[DecodingOptions]
    ) -> Steps[Segment, None, Translation]:
        """Yield the segments of a recording, with times, as soon as their window is transcribed.

        They are those of `translate` with `timestamps=True`; the generator returns its translation (`yield from`).
        source, settings, options: as in `translate`. Raises SettingsError for a model that does not read windows.
        """
        chosen = self._choose("segments", settings, options).model_copy(update={"timestamps": True})
        self.check(chosen)
        (plan,) = self.plans([Line.from_source(source)], chosen)
        return (yield from self._transcriber(chosen).segments(plan))

    def _transcriber(self, settings: DecodingSettings) -> "Transcriber":
        from translume.translator.speech import Transcriber

        stepper = self.models.stepper(attentive=SearchPlan.from_settings(settings).needs_attention)
        return Transcriber(self.checkpoint, settings, stepper, self.fusion)

    def translate_all(
        self,
        texts: Iterable[str] | Iterable[Source],
        *,
        settings: DecodingSettings | None = None,
        constraints: Iterable[Iterable[str]] | None = None,
        documents: Iterable[Hashable] | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[Translation]:
        """One translation a text, in order, whatever the number of texts; see `translate` for the options.

        constraints: those of each text, in order; there must be as many lists of them as texts.
        documents: for a model that reads context, a value for each text that is equal for the consecutive texts of one
        document; None: blank texts separate documents. A document is read as a whole.
        A line break at the end of a text (of a file's line) is removed. Reads a few thousand texts ahead.
        Errors name the number of the text as its line, after all texts before it were given back.
        """
        if isinstance(texts, str):
            raise TypeError("translate_all: found one string, expected many; use translate")
        chosen = self._choose("translate_all", settings, options)
        names = self.config.data.context.used and (True if documents is None else documents)
        lines = numbered_lines(texts, constraints, frames=self.reads_frames, documents=names)
        return chain.from_iterable(map(partial(self.translate_lines, settings=chosen), windows(lines)))

    def score(
        self,
        source: str | Source,
        target: str | TextHypothesis,
        *,
        before: Iterable[tuple[str, str]] = (),
        to: str | None = None,
        from_: str | None = None,
    ) -> TargetScore:
        """The log-probability of `target` and EOS given `source`, in nats (forced decoding).

        source: as in `translate`.

        A text is tokenized again and may get other tokens than a search used; a hypothesis keeps its own.
        before, to, from_: as in `translate`.
        """
        if not (self.reads_frames or isinstance(source, str)) or not isinstance(target, str | TextHypothesis):
            found = f"{type(source).__name__} and {type(target).__name__}"
            raise TypeError(f"score: found {found}, expected a source and a target; score_all takes many pairs")
        from translume.translator.scoring import ScoredPair

        direction = self.direction(to=to, from_=from_)
        pair = ScoredPair(place="pair", source=source, target=target, direction=direction, before=tuple(before))
        return self._score([pair])[0]

    def score_all(
        self,
        pairs: Iterable[tuple[str | Source, str | TextHypothesis]],
        *,
        documents: Iterable[Hashable] | bool = False,
        to: str | None = None,
        from_: str | None = None,
    ) -> Iterator[TargetScore]:
        """One score a pair, in order; see `score`.

        documents: for a model that reads context, a value for each pair as in `translate_all`; True: blank sources
        separate documents; False: each pair is alone.
        """
        from translume.translator.scoring import numbered_pairs

        numbered = numbered_pairs(
            pairs,
            self.direction(to=to, from_=from_),
            frames=self.reads_frames,
            documents=documents,
            context=self.config.data.context,
        )
        for window in windows(numbered):
            yield from self._score(window)

    def score_lines(self, lines: Sequence[Line], settings: DecodingSettings) -> list[TargetScore]:
        """The score of the target of each line, in order.  settings: the languages, and `max_tokens` in a batch.

        Raises LineError for a line that cannot be scored.
        """
        from translume.translator.scoring import PairError, ScoredPair, score_pairs

        way = Direction(source=settings.from_, target=settings.to)
        pairs = [
            ScoredPair(place=each.place, source=each.text, target=each.target or "", direction=way, before=each.before)
            for each in lines
        ]
        try:
            return score_pairs(self.checkpoint, pairs, settings.max_tokens, self.models)
        except PairError as error:
            raise LineError(lines[error.number], error.reason) from None

    def beliefs(
        self,
        pairs: Iterable[tuple[str, str | TextHypothesis]],
        *,
        rows: int | None = None,
        documents: Iterable[Hashable] | bool = False,
        to: str | None = None,
        from_: str | None = None,
    ) -> Iterator[tuple[NextToken, Tensor]]:
        """The predicted distributions of all target tokens, EOS included, and the tokens' ids [m].

        Forced decoding of at most `rows` tokens at a time; None: as many as fit a fixed amount of memory. The order is
        by length, not that of the pairs.  documents: as in `score_all`.  to, from_: as in `translate`.
        """
        from translume.translator.scoring import beliefs_of_pairs, numbered_pairs

        direction, context = self.direction(to=to, from_=from_), self.config.data.context
        for window in windows(numbered_pairs(pairs, direction, documents=documents, context=context)):
            for target in beliefs_of_pairs(self.checkpoint, window, self.config.decoding.max_tokens, rows, self.models):
                yield target.belief, target.labels

    def _choose(self, function: str, settings: DecodingSettings | None, options: DecodingOptions) -> DecodingSettings:
        return self.choose(
            settings, options, function=function, others=("settings", "constraints", "before", "documents")
        )

    def reading(self, settings: DecodingSettings, direction: Direction | None = None) -> Reading:
        """How the model reads lines; see `Reading.from_settings`."""
        try:
            return self._reading(settings, direction)
        except TypeError:  # `model_copy` has set a list for a tuple
            return Reading.from_settings(self.checkpoint, settings, direction)

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if settings contradict each other or need what this model does not have."""
        if settings is self._checked:
            return
        self.direction(to=settings.to, from_=settings.from_)
        strategy_from(settings)
        self._terminology(settings)
        self.config.check_decoding(settings)
        if settings.ctc_weight and (not self.config.training.ctc_weight or len(self.models) > 1):
            raise SettingsError(
                f"decoding.ctc_weight: found {settings.ctc_weight}, must be 0 "
                + ("for an ensemble" if len(self.models) > 1 else "for a model without training.ctc_weight")
            )
        if settings.ctc_weight and settings.utility != "none":
            raise SettingsError("decoding.utility cannot be combined with decoding.ctc_weight")
        if settings.utility != "none" or settings.utility_model:
            from translume.translator.ranking import utility_metric

            metric = utility_metric(settings, self.config.scoring)
            if metric is not None and metric.reads_sources and self.reads_frames:
                raise SettingsError(f"decoding.utility: '{settings.utility}' reads a source text, the model reads none")
        check_rules(self.checkpoint.target_tokenizer, settings)
        if settings.calibrated and len(self.models) > 1:
            raise SettingsError(
                "decoding.calibrated: a temperature is fitted to one model, "
                f"expected calibrated = false for {len(self.models)} of them"
            )
        if settings.calibrated and self.checkpoint.temperature is None:
            raise SettingsError(
                "decoding.calibrated: no temperature was fitted to the model's weights; "
                "translume evaluate MODEL SOURCE REFERENCE --fit-temperature fits one"
            )
        for member in self.models.members if settings.unsmooth else ():
            config = member.checkpoint.config
            over = config.training.label_smoothing_over
            head = None if config.model.head.kind == "softmax" else member.checkpoint.model.head
            if head is not None and not (head.exact_smoothing and head.normalised and head.full_support):
                what = f"model.head.kind = '{config.model.head.kind}', which does not spread label smoothing evenly"
            elif over != "all":
                what = f"training.label_smoothing_over = '{over}', which does not spread it over all tokens"
            else:
                continue
            raise SettingsError(f"decoding.unsmooth: found {settings.unsmooth}, expected 0 with {what}")
        if not (settings.terminology or settings.vocabulary or settings.ban):  # they may name files, which change
            self._checked = settings

    def translate_lines(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        on_progress: Mapping[int, ProgressCallback] | None = None,
        check_cancelled: CancelCheck | None = None,
    ) -> Iterator[Translation]:
        """The translations of consecutive lines, in order, translated in common batches.

        on_progress: by line number, a callback for the part of the translation that is final; see `ProgressReporter`.
        check_cancelled: called before each search and at least every 8 of its steps. If it raises, all
        lines end.
        An error names the number of its line; the lines before it are returned first.
        """

        def translated(part: Sequence[Line]) -> list[Translation]:
            plans = self.plans(part, settings)
            if self.config.data.source.window:
                return self._transcriber(settings).write(plans, on_progress or {}, check_cancelled)
            progress = ProgressReporter(self.checkpoint.target_tokenizer, plans, on_progress) if on_progress else None
            searched = search_plans(
                self.checkpoint, plans, settings, self.models, self.fusion, progress, check_cancelled
            )
            return build_translations(self.checkpoint, plans, searched, settings, self.engine)

        return up_to_an_error(translated, lines)

    def plans(self, lines: Sequence[Line], settings: DecodingSettings) -> list[LinePlan]:
        """The lines split into pieces that the model can read; LineError for a line that cannot be split so."""
        plans: list[LinePlan] = []
        for direction, group in groupby(lines, key=lambda line: line.direction):
            plans += plan_lines(list(group), self.checkpoint.source_tokenizer, self.reading(settings, direction))
        if self.config.data.source.window:
            return plans
        terminology = self._terminology(settings)
        forced = bool(settings.placeholders) and settings.strategy in CONSTRAINABLE  # other strategies only warn
        if terminology is None and not forced and not any(line.constraints for line in lines):
            return plans
        refuse_constraints(settings)
        return [add_constraints(plan, self.checkpoint, settings, terminology) for plan in plans]

    def _terminology(self, settings: DecodingSettings) -> Terminology | None:
        """The terms in the file of `decoding.terminology`; None if it names no file."""
        if not settings.terminology:
            return None
        refuse_constraints(settings)
        tokenizers = self.checkpoint.source_tokenizer, self.checkpoint.target_tokenizer
        return Terminology.read(settings.terminology, *tokenizers)

    def _score(self, pairs: "Sequence[ScoredPair]") -> list[TargetScore]:
        from translume.translator.scoring import score_pairs

        return score_pairs(self.checkpoint, pairs, self.config.decoding.max_tokens, self.models)


def up_to_an_error(work: Callable[[Sequence[Line]], Iterable[T]], lines: Sequence[Line]) -> Iterator[T]:
    """Yield the results of lines, in order. An error names the first line without one, after those before it.

    work: returns the results of consecutive lines, or raises LineError for one of them.
    """
    try:
        done = work(lines)
    except LineError as error:
        if before := lines[: lines.index(error.line)]:
            yield from up_to_an_error(work, before)
        raise error from None
    yield from done


@suggest_keywords
def load(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Dtype = "auto",
    threads: int | None = None,
    engine: EngineName = "auto",
    plugins: Sequence[str] = (),
) -> Any:
    """The `Translator`, the `Classifier` or the `Generator` in a model folder, which decides.

    `Translator.load(folder)` and so on are for type checkers, and refuse other models.

    folder: may be hf://owner/name[@revision], a repository of the Hugging Face Hub, which is imported into the cache.
    The defaults are those of the commands `translume translate`, `classify` and `generate`: "auto" searches with the
    fast engine, or with the plain model where there is none. See `ComputeOptions`.
    threads: of the kernels and of torch in the whole process; None: all cores, or as $OMP_NUM_THREADS says.
    plugins: modules of parts to import, as by --import. A model folder alone never makes Translume import any.
    Raises ModelFolderError if the folder is not a model folder, is damaged or was written by a newer Translume.
    """
    refuse_threads(threads)
    load_parts(plugins)
    options = ComputeOptions(engine=engine, device=device, dtype=dtype, threads=threads)
    folder = model_folder(folder)
    user_class: type[LoadedModel[Any]] = task_of(read_config(folder)).user_class()
    return user_class.load(folder, options)
