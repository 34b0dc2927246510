"""The translator and the functions that load one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Generator as Steps
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Unpack

from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import (
    Checkpoint,
    load_checkpoint,
    model_folder,
    read_config,
)
from translume.config import Config, DecodingOptions, DecodingSettings, Direction, Directions
from translume.decoding import (
    Average,
    Fusion,
    Hypothesis,
    LanguageModel,
    SearchError,
    Stepper,
    resolve_strategy,
    strategy_from,
)
from translume.engine import Engine
from translume.errors import SettingsError, TranslumeError, refuse_unknown_keywords, suggest_keywords
from translume.tasks import task_of
from translume.translator.assembly import ProgressCallback, ProgressReporter, build_translations
from translume.translator.classifier import Classifier
from translume.translator.cohort import Cohort
from translume.translator.constraints import STRATEGIES as CONSTRAINABLE
from translume.translator.constraints import Terminology, check_rules, refuse_constraints
from translume.translator.device_searcher import MAX_SLOTS, DeviceSearcher
from translume.translator.engines import (
    ComputeOptions,
    EngineName,
    ModelDtype,
    SearchEngine,
    describe_engine,
    set_threads,
    with_engine,
)
from translume.translator.ensemble import EnsembleMembers, Member, combine, ensemble_checkpoint
from translume.translator.generator import Generator
from translume.translator.planning import (
    ANY_MAX_TOKENS,
    DEVICE_BATCH_TOKENS,
    FULL_BATCH_WIDTH,
    MIN_COUNTED_TOKENS,
    Line,
    LineError,
    LinePlan,
    Piece,
    Reading,
    Readings,
    batches,
    bucketed_batches,
    directions_of,
    numbered_lines,
    plan_lines,
    windows,
)
from translume.translator.results import Segment, TargetScore, TextHypothesis, Translation
from translume.translator.scoring import ScoredPair, beliefs_of_pairs, numbered_pairs, score_pairs
from translume.translator.search import (
    CancelCheck,
    SearchPlan,
    add_constraints,
    constrained_width,
    search_constrained,
    search_pieces,
    search_together,
)
from translume.translator.speech import Transcriber

Source = Any
"""A path, bytes, a NumPy array or a PIL image."""


class Translator:
    """A model that translates. No call changes it, so threads may share it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: SearchEngine | None = None,
        *,
        models: EnsembleMembers | None = None,
        fusion: Fusion | None = None,
    ) -> None:
        """checkpoint: its model is used in the mode, training or evaluation, that it is in.

        engine: searches instead of the plain model; see `compile`.  models: the models to average, the checkpoint's own
        first; see `ensemble_with`.  fusion: see `fuse_with`.
        """
        self.checkpoint = checkpoint
        self.models = models or EnsembleMembers(members=(Member(checkpoint=checkpoint, engine=engine),))
        self.fusion = fusion
        self.folder: Path | None = None
        """The model folder that it was loaded from, if any."""
        self._made_by: tuple[Callable[..., Translator], tuple[Any, ...]] | None = None
        """The function and arguments that returned it, for `__reduce__`."""
        self._checked: DecodingSettings | None = None
        """The settings of the last call, if nothing outside them can make them invalid."""
        self._readings = Readings(checkpoint)

    @classmethod
    def load(cls, folder: Path | str, options: ComputeOptions | None = None) -> "Translator":
        """The translator in a model folder.

        The engine is built now if the options name one, and at the first translation if `options.engine` is "auto".
        Raises ModelFolderError if the folder holds no translator, EngineError (a SettingsError) if the engine that the
        options name cannot be built.
        """
        folder, options = model_folder(folder), options or ComputeOptions()
        found = folder.absolute()  # messages name the folder as given
        return cls._load(folder, options)._remember(found, cls.load, found, options)

    @classmethod
    def _load(cls, folder: Path, options: ComputeOptions) -> "Translator":
        set_threads(options.threads)

        def read(dtype: ModelDtype) -> Checkpoint:
            return load_checkpoint(folder, device=options.device, dtype=dtype)

        return cls(*with_engine(read, options))

    def __repr__(self) -> str:
        model, directions = self.config.model, self.directions
        languages = f" {directions.describe()}" if directions.sources else ""
        parts = [
            f"{sum(weight.numel() for weight in self.checkpoint.model.parameters()):,} parameters",
            f"{model.encoder_layers}+{model.decoder_layers} layers",
            f"width {model.width}",
            f"{model.head.kind} head over {len(self.checkpoint.target_tokenizer):,} tokens",
            describe_engine(self.models.members[0].engine),
        ]
        if len(self.models) > 1:
            parts.append(f"ensemble of {len(self.models)}")
        if self.folder is not None:
            parts.append(str(self.folder))
        return f"<Translator{languages}: {', '.join(parts)}>"

    def __reduce__(self) -> tuple[Callable[..., "Translator"], tuple[Any, ...]]:
        """Pickle by the model's folder and options; TypeError for a translator that no folder holds.

        Unpickling loads the model again.
        """
        if self._made_by is None:
            raise TypeError("Translator: it has no model folder, so it cannot be pickled; load_translator(folder) can")
        return self._made_by

    def _remember(self, folder: Path | None, function: Callable[..., "Translator"], *arguments: Any) -> "Translator":
        """Set the folder, and the call that returned this new translator, for pickling; return the translator."""
        self.folder, self._made_by = folder, (function, arguments)
        return self

    @property
    def config(self) -> Config:
        """The settings the model was trained with."""
        return self.checkpoint.config

    @property
    def engine(self) -> Engine | None:
        """The engine that searches, of an ensemble the first model's; None if the model does. Built now if needed."""
        return self.models.members[0].built_engine()

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

        dtype: of the packed weights. Log-probabilities are fp32, and forced decoding (`score`) uses the plain model.
        Raises EngineError (a SettingsError) if there is no engine for the model or the machine.
        """
        made = Translator(self.checkpoint, models=self.models.compiled(dtype), fusion=self.fusion)
        return made._remember(self.folder, Translator.compile, self, dtype)

    def step_with(self, stepper: Stepper) -> "Translator":
        """A translator of the same model whose searches take the steps of `stepper`, as an `OnnxStepper`.

        stepper: it has the same vocabularies. A search that needs attention uses the plain model if the stepper returns
        none. Forced decoding (`score`) uses the plain model.
        Raises SettingsError for an ensemble.
        """
        made = Translator(self.checkpoint, models=self.models.with_steps(stepper), fusion=self.fusion)
        return made._remember(self.folder, Translator.step_with, self, stepper)

    def ensemble_with(self, *others: "Translator", average: Average = "probability") -> "Translator":
        """A translator that averages the distributions of this model and others at each step.

        average: "probability" is the mean of probabilities, "log_probability" that of log-probabilities, normalised.
        It has this translator's settings, and the shortest maximum length of all. Its scores are those of the ensemble.
        Raises SettingsError unless all have the same tokenizers and are on the same device.
        """
        models = combine([self.models, *(other.models for other in others)], average)
        made = Translator(ensemble_checkpoint(models), models=models, fusion=self.fusion)
        return made._remember(self.folder, partial(Translator.ensemble_with, average=average), self, *others)

    def fuse_with(self, model: LanguageModel, weight: float) -> "Translator":
        """A translator that ranks by log p + weight · log p_lm (shallow fusion).  weight: above 0.

        `log_prob`, also from `score`, remains the translator's own. Targets are at most as long as the context of a
        `Generator`. Raises SettingsError for a `Generator` of another target vocabulary and for another weight.
        """
        if not all(callable(getattr(model, name, None)) for name in ("start", "step")):
            raise TypeError(f"fuse_with: found {type(model).__name__}, expected a Generator or another LanguageModel")
        if isinstance(model, Generator) and model.tokenizer.digest != self.checkpoint.target_tokenizer.digest:
            raise SettingsError(
                "fuse_with: the language model has another vocabulary, expected the translator's target tokenizer"
            )
        made = Translator(self.checkpoint, models=self.models, fusion=Fusion(model, weight))
        return made._remember(self.folder, Translator.fuse_with, self, model, weight)

    def translate(
        self,
        text: str | Source,
        *,
        settings: DecodingSettings | None = None,
        constraints: Iterable[str] = (),
        **options: Unpack[DecodingOptions],
    ) -> Translation:
        """The translation of one text, which may have many sentences; a blank one has an empty translation.

        For a model of audio, images or features, `text` is a path, the bytes of a file, a NumPy array, or, for images,
        a PIL image.

        settings: instead of the model's own [decoding].
        options: single settings of `DecodingSettings`, which replace those of `settings`. `beam` chooses beam search,
        unless `strategy` is given too or the model's strategy uses a beam.
        constraints: words and phrases that it must hold; a warning, `constraint_unmet: …`, says why it cannot.
        Raises TranslationError if a sentence is longer than the model reads, SettingsError if the options do not fit.
        """
        chosen = self._choose("translate", settings, options)
        frames = bool(self.config.data.source.reader)
        if not frames and not isinstance(text, str):
            raise TypeError(
                f"translate: found {type(text).__name__}, expected one text (str); translate_all takes many"
            )
        lines = [line for line, _ in numbered_lines([text], [constraints], frames=frames)]
        whole = text if isinstance(text, str) else lines[0].text  # with a line break at its end
        return self._translate_window([replace(lines[0], number=0, text=whole)], chosen, {}, None)[0]

    def segments(
        self, source: Source, *, settings: DecodingSettings | None = None, **options: Unpack[DecodingOptions]
    ) -> Steps[Segment, None, Translation]:
        """Yield the segments of a recording, with times, as soon as their window is transcribed.

        They are those of `translate` with `timestamps=True`; the generator returns its translation (`yield from`).
        source, settings, options: as in `translate`. Raises SettingsError for a model that does not read windows.
        """
        chosen = self._choose("segments", settings, options).model_copy(update={"timestamps": True})
        self.check(chosen)
        (line,) = [line for line, _ in numbered_lines([source], [()], frames=True)]
        (plan,) = self.plans([replace(line, number=0)], chosen)
        return (yield from self._transcriber(chosen).segments(plan))

    def _transcriber(self, settings: DecodingSettings) -> Transcriber:
        stepper = self.models.stepper(attentive=SearchPlan.of(settings).needs_attention)
        return Transcriber(self.checkpoint, settings, stepper, self.fusion)

    def translate_all(
        self,
        texts: Iterable[str] | Iterable[Source],
        *,
        settings: DecodingSettings | None = None,
        constraints: Iterable[Iterable[str]] | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[Translation]:
        """One translation a text, in order, whatever the number of texts; see `translate` for the options.

        constraints: those of each text, in order; there must be as many lists of them as texts.
        A line break at the end of a text (of a file's line) is no part of it. Texts are read some thousand ahead.
        Errors name the number of the text as its line, after all texts before it were given back.
        """
        if isinstance(texts, str):
            raise TypeError("translate_all: found one text, expected many; use translate")
        chosen = self._choose("translate_all", settings, options)
        frames = bool(self.config.data.source.reader)
        return self._stream(numbered_lines(texts, constraints, frames=frames), chosen)

    def score(
        self, source: str | Source, target: str | TextHypothesis, *, to: str | None = None, from_: str | None = None
    ) -> TargetScore:
        """The log-probability of `target` and its end mark given `source`, in nats (forced decoding).

        source: as in `translate`.

        A text is tokenized anew and may get other tokens than a search used; a hypothesis keeps its own.
        to, from_: as in `translate`.
        """
        frames = bool(self.config.data.source.reader)
        if not (frames or isinstance(source, str)) or not isinstance(target, str | TextHypothesis):
            found = f"{type(source).__name__} and {type(target).__name__}"
            raise TypeError(f"score: found {found}, expected a source and a target; score_all takes many pairs")
        direction = self.direction(to=to, from_=from_)
        return self._score([ScoredPair(place="pair", source=source, target=target, direction=direction)])[0]

    def score_all(
        self,
        pairs: Iterable[tuple[str | Source, str | TextHypothesis]],
        *,
        to: str | None = None,
        from_: str | None = None,
    ) -> Iterator[TargetScore]:
        """One score a pair, in order; see `score`."""
        frames = bool(self.config.data.source.reader)
        for window in windows(numbered_pairs(pairs, self.direction(to=to, from_=from_), frames=frames)):
            yield from self._score(window)

    def beliefs(
        self,
        pairs: Iterable[tuple[str, str | TextHypothesis]],
        *,
        rows: int | None = None,
        to: str | None = None,
        from_: str | None = None,
    ) -> Iterator[tuple[NextToken, Tensor]]:
        """The predicted distributions of all target tokens, end marks included, and the tokens' ids [m].

        Forced decoding of at most `rows` tokens at a time; None: as many as fit a fixed amount of memory. The order is
        by length, not that of the pairs.  to, from_: as in `translate`.
        """
        for window in windows(numbered_pairs(pairs, self.direction(to=to, from_=from_))):
            most = self.config.decoding.max_tokens
            for found in beliefs_of_pairs(self.checkpoint, window, most, rows, self.models):
                yield found.belief, found.labels

    def _choose(self, function: str, settings: DecodingSettings | None, options: DecodingOptions) -> DecodingSettings:
        """The settings with single options replaced, checked before any text is read.  function: for its errors."""
        refuse_unknown_keywords(function, options, ("settings", "constraints", *DecodingSettings.model_fields))
        if settings is not None and not isinstance(settings, DecodingSettings):
            raise TypeError(f"settings: found {type(settings).__name__}, expected DecodingSettings or None")
        chosen = settings or self.config.decoding
        if options:
            values = {"decoding": {**chosen.model_dump(), **options}}
            chosen = resolve_strategy(Config.build(values, place="translate").decoding, options)
        self.check(chosen)
        return chosen

    def reading(self, settings: DecodingSettings, direction: Direction | None = None) -> Reading:
        """How the model reads lines; see `Reading.of`."""
        return self._readings.of(settings, direction)

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if settings contradict each other or need what this model does not have."""
        if settings is self._checked:
            return
        self.direction(to=settings.to, from_=settings.from_)
        strategy_from(settings)
        self._terminology(settings)
        self.config.check_decoding(settings)
        if settings.ctc_weight and (self.checkpoint.model.ctc is None or len(self.models) > 1):
            raise SettingsError(
                f"decoding.ctc_weight: found {settings.ctc_weight}, must be 0 "
                + ("for an ensemble" if len(self.models) > 1 else "for a model without training.ctc_weight")
            )
        if settings.ctc_weight and settings.utility != "none":
            raise SettingsError(f"decoding.utility: found '{settings.utility}' with ctc_weight, expected one of them")
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
            raise SettingsError(f"decoding.unsmooth: found {settings.unsmooth}, expected 0 with {what}")
        if not (settings.terminology or settings.vocabulary or settings.ban):  # they may name files, which change
            self._checked = settings

    def _stream(self, lines: Iterable[tuple[Line, int]], settings: DecodingSettings) -> Iterator[Translation]:
        for window in windows(lines):
            yield from self.translate_lines(window, settings)

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
        try:
            done = self._translate_window(lines, settings, on_progress or {}, check_cancelled)
        except LineError as error:
            before = lines[: error.line.number - lines[0].number]
            yield from self.translate_lines(before, settings, on_progress, check_cancelled)
            raise error from None
        yield from done

    def translate_each(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        on_progress: Mapping[int, ProgressCallback] | None = None,
        unneeded: Callable[[], Collection[int]] = tuple,
    ) -> Iterator[tuple[int, Translation | TranslumeError]]:
        """The translation of each line, or its LineError, with its place in `lines`, as soon as it is done.

        on_progress: as in `translate_lines`, but by place.
        unneeded: called between steps of the search; the places of lines that are given up.
        """
        cohort = Cohort[int](self, settings)
        cohort.enter(dict(enumerate(lines)), on_progress or {})
        while cohort:
            yield from cohort.run(unneeded).items()
        cohort.close()

    def _translate_window(
        self,
        lines: Sequence[Line],
        settings: DecodingSettings,
        on_progress: Mapping[int, ProgressCallback],
        check_cancelled: CancelCheck | None,
    ) -> list[Translation]:
        """The translations of some lines, searched in batches of similar lengths."""
        plans = self.plans(lines, settings)
        if self.config.data.source.window:
            return self._transcriber(settings).write(plans, on_progress, check_cancelled)
        pieces = [(plan, piece) for plan in plans for piece in plan.pieces]
        found: list[list[TextHypothesis]] = [[] for _ in pieces]
        warnings: list[tuple[str, ...]] = [() for _ in pieces]
        search = SearchPlan.of(settings)
        stepper = self.models.stepper(attentive=search.needs_attention)
        progress = ProgressReporter(self.checkpoint.target_tokenizer, plans, on_progress)
        together = isinstance(stepper, DeviceSearcher) and not on_progress and settings.max_tokens == ANY_MAX_TOKENS
        if isinstance(stepper, DeviceSearcher) and together:
            try:
                for index, each in self._searched_together(pieces, search, stepper, check_cancelled):
                    found[index] = search.rank(each, self.checkpoint.target_tokenizer)
            except SearchError as error:
                raise LineError(pieces[error.sentence][0].line, f"token {error.token}: {error.reason}") from None
        for batch in self._batches([piece for _, piece in pieces], settings, search.width, constrained=together):
            searched = [pieces[index][1] for index in batch]
            if check_cancelled is not None:
                check_cancelled()
            try:
                if searched[0].constraints:
                    results = []
                    for index, one in zip(
                        batch,
                        search_constrained(
                            self.checkpoint, searched, search.decoding, stepper, self.fusion, check_cancelled
                        ),
                        strict=True,
                    ):
                        results.append(one.hypotheses)
                        warnings[index] = one.warnings
                else:
                    observer = progress.observer(batch, reranked=search.reranked)
                    results = search_pieces(
                        self.checkpoint, searched, search.decoding, stepper, self.fusion, observer, check_cancelled
                    )
            except SearchError as error:
                line = pieces[batch[error.sentence]][0].line
                raise LineError(line, f"token {error.token}: {error.reason}") from None
            ranked = [search.rank(hypotheses, self.checkpoint.target_tokenizer) for hypotheses in results]
            for index, hypotheses in zip(batch, ranked, strict=True):
                found[index] = hypotheses
                progress.complete(index, found[index])
        return build_translations(self.checkpoint, plans, list(zip(found, warnings, strict=True)), settings)

    def _searched_together(
        self,
        pieces: Sequence[tuple[LinePlan, Piece]],
        search: SearchPlan,
        searcher: DeviceSearcher,
        check_cancelled: CancelCheck | None,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The positions of the pieces without constraints, and their hypotheses, of searches on a device."""
        own = [index for index, (_, piece) in enumerate(pieces) if piece.ids and not piece.constraints]
        lengths = [len(pieces[index][1].read_ids) + 1 for index in own]
        every = [piece for _, piece in pieces]
        for group in bucketed_batches(lengths, DEVICE_BATCH_TOKENS, MAX_SLOTS):
            numbered = [[own[place] for place in batch] for batch in group]
            yield from search_together(
                self.checkpoint, every, numbered, search.decoding, searcher, self.fusion, check_cancelled
            )

    def _batches(
        self, pieces: Sequence[Piece], settings: DecodingSettings, width: int, *, constrained: bool
    ) -> Iterator[list[int]]:
        """Positions of the pieces to translate, in batches of similar lengths.

        Pieces with constraints are in batches of their own, one for each beam width; the others search with `width`.
        constrained: only those with constraints.
        """
        filled = [index for index, piece in enumerate(pieces) if piece.ids and (piece.constraints or not constrained)]
        widths = {
            index: constrained_width(pieces[index], self.checkpoint, settings) if pieces[index].constraints else 0
            for index in filled
        }
        for own in sorted(set(widths.values())):
            positions = [index for index in filled if widths[index] == own]
            lengths = [len(pieces[index].ids) + 1 for index in positions]
            most = settings.max_tokens * FULL_BATCH_WIDTH // max(own or width, FULL_BATCH_WIDTH)
            for batch in batches(lengths, most, shortest=MIN_COUNTED_TOKENS):
                yield [positions[place] for place in batch]

    def plans(self, lines: Sequence[Line], settings: DecodingSettings) -> list[LinePlan]:
        """The lines split into pieces that the model can read; LineError for a line that cannot be split so."""
        plans: list[LinePlan] = []
        for direction, group in groupby(lines, key=lambda line: line.direction):
            reading = self.reading(settings, direction)
            plans += plan_lines(list(group), self.checkpoint.source_tokenizer, reading)
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

    def _score(self, pairs: Sequence[ScoredPair]) -> list[TargetScore]:
        return score_pairs(self.checkpoint, pairs, self.config.decoding.max_tokens, self.models)


@suggest_keywords
def load(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    threads: int | None = None,
    engine: EngineName = "auto",
) -> Translator | Classifier | Generator:
    """The translator, the classifier or the language model in a model folder.

    folder: may be hf://owner/name[@revision], a repository of the Hugging Face Hub, which is imported into the cache.
    The defaults are those of the commands `translume translate`, `classify` and `generate`: "auto" searches with the
    fast engine, built at the first translation, or with the plain model where there is none. See `ComputeOptions`.
    threads: number of torch's threads in the whole process.
    Raises ModelFolderError if the folder is no model, is damaged or was written by a newer Translume.
    """
    options = ComputeOptions(engine=engine, device=device, dtype=dtype, threads=threads)
    set_threads(threads)
    folder = model_folder(folder)
    task = task_of(read_config(folder))
    user_class: type[Translator] | type[Classifier] | type[Generator] = task.part("user_class")
    return user_class.load(folder, options)


@suggest_keywords
def load_translator(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    threads: int | None = None,
    engine: EngineName = "auto",
) -> Translator:
    """The translator in a model folder; see `load`. Raises ModelFolderError if it holds a classifier."""
    return Translator.load(folder, ComputeOptions(engine=engine, device=device, dtype=dtype, threads=threads))


@suggest_keywords
def load_classifier(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    threads: int | None = None,
) -> Classifier:
    """The classifier in a model folder; see `load`. Raises ModelFolderError if it holds a translator."""
    return Classifier.load(folder, ComputeOptions(device=device, dtype=dtype, threads=threads))


@suggest_keywords
def load_generator(
    folder: Path | str,
    *,
    device: str = "auto",
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    threads: int | None = None,
    engine: EngineName = "auto",
) -> Generator:
    """The language model in a model folder; see `load`. Raises ModelFolderError if it holds another kind of model."""
    return Generator.load(folder, ComputeOptions(engine=engine, device=device, dtype=dtype, threads=threads))
