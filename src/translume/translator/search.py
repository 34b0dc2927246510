"""Search for the hypotheses of pieces as [decoding] demands, with or without constraints."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import (
    AttentionStepper,
    Beam,
    BestHypotheses,
    CompleteSearch,
    Fusion,
    Hypothesis,
    PromptedState,
    PromptedStep,
    Rule,
    RuleContext,
    SearchError,
    SearchObserver,
    Step,
    Stepper,
    Strategy,
    decode,
    makes_draws,
    reshaped,
    runs_searches,
    strategy_from,
)
from translume.engine import Engine, SentenceDraft
from translume.lazy import Tensor, inference_mode, torch
from translume.text import Tokenizer
from translume.translator.assembly import ProgressReporter, SearchedPiece
from translume.translator.constraints import (
    Constraint,
    Terminology,
    Words,
    build_constraint,
    build_rules,
    constrained_beam,
    constrained_beam_width,
    constraint_cost,
    explain_search_error,
    placeholders_of,
    times_rule,
    unmet_constraints,
    words_of,
)
from translume.translator.ensemble import EnsembleMembers
from translume.translator.loading import draft_of
from translume.translator.planning import (
    ANY_MAX_TOKENS,
    DEVICE_BATCH_ROWS,
    DEVICE_BATCH_TOKENS,
    FULL_BATCH_WIDTH,
    MIN_COUNTED_TOKENS,
    LineError,
    LinePlan,
    Piece,
    batches,
    bucketed_batches,
    padded_sources,
    source_arrays,
)
from translume.translator.results import TextHypothesis

if TYPE_CHECKING:
    from translume.decoding import CtcPrefix

CancelCheck = Callable[[], None]
"""Called between the steps of a search, which ends if it raises."""

STEPS_PER_CALL = 8
"""Steps that a searcher takes in one call. Between calls it can be cancelled, and Python can handle Ctrl-C."""
DEFAULT_RATIO, DEFAULT_EXTRA = 2.0, 10
"""The length limit of a target without settings and training data: tokens per source token, and those added."""
TOKEN_CACHE_BYTES = 1 << 19
"""Bytes of keys and values that an engine may hold for each of the tokens of a full batch: a bound for large models."""
UNMET = "constraint_unmet"
"""The first word of warnings about constraints."""
_UNWRITABLE = "the target's vocabulary cannot write it"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchPlan:
    """[decoding] with what follows from it for a search.

    decoding: the settings of the search; `nbest` is the beam width if a utility or CTC reranks.
    width: hypotheses kept for a sentence without constraints.
    needs_attention: whether the search needs the attention of each step.
    reranked: whether the best hypothesis is chosen by a utility or with CTC and not by the search's score.
    """

    decoding: DecodingSettings
    nbest: int
    width: int
    needs_attention: bool
    reranked: bool

    @classmethod
    def from_settings(cls, settings: DecodingSettings) -> Self:
        """Derive them from [decoding]."""
        strategy = strategy_from(settings)
        reranked = (settings.utility != "none" or reads_ctc(settings)) and strategy.width > 1
        return cls(
            decoding=settings.model_copy(update={"nbest": strategy.width}) if reranked else settings,
            nbest=settings.nbest,
            width=strategy.width,
            needs_attention=strategy.coverage is not None,
            reranked=reranked,
        )

    def rank(
        self, by_piece: Sequence[Sequence[Hypothesis]], pieces: Sequence[Piece], checkpoint: Checkpoint
    ) -> list[list[TextHypothesis]]:
        """The hypotheses of each piece as text, best first.

        checkpoint: has the tokenizer, and in [evaluation] the model of a learned utility.
        """
        tokenizer, metric = checkpoint.target_tokenizer, None
        if self.reranked:
            from translume.translator.ranking import rank_by_metric, utility_metric

            metric = utility_metric(self.decoding, checkpoint.config.scoring)
        if metric is None:
            return [self._ranked(each, tokenizer) for each in by_piece]
        texts = [[TextHypothesis.from_hypothesis(each, tokenizer) for each in own] for own in by_piece]
        return rank_by_metric(texts, [piece.text for piece in pieces], metric, self.nbest)

    def _ranked(self, hypotheses: Sequence[Hypothesis], tokenizer: Tokenizer) -> list[TextHypothesis]:
        """The hypotheses of a piece, without a learned utility.

        With CTC, by the sum of the search without length penalty: (1 − λ) · log p + λ · log p of CTC.
        """
        texts = [TextHypothesis.from_hypothesis(each, tokenizer) for each in hypotheses]
        if not self.reranked:
            return texts
        if reads_ctc(self.decoding):
            scale = 1 + _ctc_share(self.decoding.ctc_weight)
            sums = [
                replace(text, score=each.terms.total / scale, terms=None)
                for text, each in zip(texts, hypotheses, strict=True)
            ]
            return sorted(sums, key=lambda each: -each.score)[: self.nbest]
        from translume.translator.ranking import minimum_bayes_risk

        return minimum_bayes_risk(texts, self.decoding.utility, self.nbest)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSearch:
    """A search for some pieces, by a searcher or by the decoding loop.

    stepper: takes the steps.  encoded: its state before the first token.
    prompts: [B, P], what is read before the first token of the search: bos and tags.  limits: [B].
    shape: makes the distributions that the settings demand of the stepper's own; None if these are demanded.
    fusion: a language model for ranking.  device: of the tensors that the loop works with.
    explain: adds a hint to an error of the loop.
    draft: `Draft.begin` for the only source; None without a draft or with several sources.
    """

    stepper: Stepper
    encoded: Any
    prompts: NDArray[np.int64]
    eos: int
    strategy: Strategy
    limits: NDArray[np.int64]
    rules: Sequence[Rule]
    shape: Callable[[Step[Any]], Step[Any]] | None
    fusion: Fusion | None
    device: "torch.device | None"
    explain: Callable[[SearchError], SearchError]
    draft: Callable[[NDArray[np.int64], NDArray[np.int64], int], SentenceDraft | None] | None = None

    @property
    def step(self) -> Step[Any]:
        """The step of the decoding loop, after the prompts."""
        step: Step[Any] = self.stepper.step if self.prompts.shape[1] == 1 else PromptedStep(self.stepper.step)
        step = step if self.shape is None else self.shape(step)
        return step if self.fusion is None else self.fusion.over(step)

    @property
    def state(self) -> Any:
        """The state before the first step of the loop."""
        state = self.encoded
        if self.prompts.shape[1] > 1:
            state = PromptedState(state, self._tensor(self.prompts))
        return state if self.fusion is None else self.fusion.start(state, len(self.prompts))

    def beams(self) -> Iterator[Beam]:
        """The beam after every step, as `decode` yields them."""
        words = {**self._words, "limits": self._tensor(self.limits)}
        return decode(self.step, self.state, bos=int(self.prompts[0, 0]), **words)

    @inference_mode()
    def run(
        self, observer: SearchObserver | None = None, check_cancelled: CancelCheck | None = None
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each piece, best first: by the searcher, or else by the decoding loop.

        observer: called with each beam of the loop, which then searches; its sentence numbers are positions of pieces.
        check_cancelled: called at least every `STEPS_PER_CALL` steps.
        Raises SearchError for a piece that cannot be searched.
        """
        searched = self.run_searcher(check_cancelled) if observer is None else None
        return self.run_loop(observer, check_cancelled) if searched is None else searched

    def run_loop(self, observer: SearchObserver | None, check_cancelled: CancelCheck | None) -> list[list[Hypothesis]]:
        """What `run` returns, by the decoding loop."""
        count = len(self.limits)
        best = BestHypotheses(self.strategy, count)
        try:
            for beam in self.beams():
                if check_cancelled is not None:
                    check_cancelled()
                if observer is not None:
                    observer(beam)
                best.add(beam)
        except SearchError as error:
            raise self.explain(error) from None
        return [best.hypotheses(number) for number in range(count)]

    def run_searcher(self, check_cancelled: CancelCheck | None) -> list[list[Hypothesis]] | None:
        """The hypotheses that the searcher finds; None if there is no searcher, or it cannot run this search.

        It also returns None where the search fails: the decoding loop then raises the error.
        """
        begun = self.begin_search()
        if begun is None:
            return None
        search, numbers = begun
        while search.live:
            search.run(STEPS_PER_CALL)
            if check_cancelled is not None:
                check_cancelled()
        searched = [hypotheses for number in numbers if (hypotheses := search.hypotheses(number)) is not None]
        search.close()
        return searched if len(searched) == len(numbers) else None

    def begin_search(self, running: CompleteSearch | None = None) -> tuple[CompleteSearch, Sequence[int]] | None:
        """A search by the searcher, and the numbers of the pieces there; None if it cannot run this search.

        running: a search that the pieces enter if it has the same settings.
        """
        if self.shape is not None or self.fusion is not None or not runs_searches(self.stepper):
            return None
        words = self._words
        if isinstance(self.stepper, Engine):
            words["draft"] = self.draft
            return self.stepper.complete_search(self.encoded, prompts=self.prompts, running=running, **words)
        words["limits"] = self._tensor(self.limits)
        return self.stepper.complete_search(self.encoded, prompts=self._tensor(self.prompts), running=running, **words)

    @property
    def _words(self) -> dict[str, Any]:
        """What both ways of searching are given."""
        return {"eos": self.eos, "strategy": self.strategy, "limits": self.limits, "rules": self.rules}

    def _tensor(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def search_plans(
    checkpoint: Checkpoint,
    plans: list[LinePlan],
    settings: DecodingSettings,
    models: EnsembleMembers,
    fusion: Fusion | None = None,
    progress: ProgressReporter | None = None,
    check_cancelled: CancelCheck | None = None,
) -> list[SearchedPiece]:
    """The hypotheses of each piece of all plans, in order, searched in batches of similar lengths.

    Pieces with constraints are in batches of their own, one for each beam width. On a GPU all others share one search,
    in which each starts when another ends. The pieces of `plans` get their context; see `turns`.
    progress, check_cancelled: see `Translator.translate_lines`.  Raises LineError for a piece that cannot be searched.
    """
    search = SearchPlan.from_settings(settings)
    stepper = models.stepper(attentive=search.needs_attention)
    lines = [plan.line for plan in plans for _ in plan.pieces]
    pieces = [piece for plan in plans for piece in plan.pieces]
    searched: list[SearchedPiece] = [([], ())] * len(pieces)
    shares = False
    try:
        if not isinstance(stepper, Engine) and progress is None and settings.max_tokens == ANY_MAX_TOKENS:
            from translume.translator.device_searcher import DeviceSearcher

            shares = isinstance(stepper, DeviceSearcher)
        rounds: Iterable[list[int]] = [[*range(len(pieces))]]
        if checkpoint.config.data.context.used:
            from translume.translator.context import turns

            rounds = turns(checkpoint, plans, pieces, searched, partial(context_room, checkpoint, settings))
        for numbers in rounds:
            batch: Sequence[int] = range(len(pieces))  # to which the sentence of an error belongs
            if shares:
                shared = [index for index in numbers if pieces[index].ids and not pieces[index].constraints]
                lengths = [len(pieces[index].read_ids) + 1 for index in shared]
                for group in bucketed_batches(lengths, DEVICE_BATCH_TOKENS, DEVICE_BATCH_ROWS):
                    numbered = [[shared[place] for place in places] for places in group]
                    by_piece = dict(
                        search_together(checkpoint, pieces, numbered, search.decoding, stepper, fusion, check_cancelled)
                    )
                    ranked = search.rank([*by_piece.values()], [pieces[index] for index in by_piece], checkpoint)
                    for index, each in zip(by_piece, ranked, strict=True):
                        searched[index] = each, ()
            widths: dict[int, list[int]] = defaultdict(list)
            for index in numbers:
                piece = pieces[index]
                if piece.ids and (piece.constraints or not shares):
                    widths[constrained_width(piece, checkpoint, settings) if piece.constraints else 0].append(index)
            for width, indices in sorted(widths.items()):
                max_tokens = settings.max_tokens * FULL_BATCH_WIDTH // max(width or search.width, FULL_BATCH_WIDTH)
                lengths = [len(pieces[index].read_ids) + 1 for index in indices]
                if isinstance(stepper, Engine):
                    limits = [target_limit(checkpoint, length, 0, settings) for length in lengths]
                    held = map(stepper.cache_bytes, lengths, limits, repeat(width or search.width))
                    share = max(each / length for each, length in zip(held, lengths, strict=True))
                    max_tokens = min(max_tokens, int(settings.max_tokens * TOKEN_CACHE_BYTES / share))
                for places in batches(lengths, max_tokens, shortest=MIN_COUNTED_TOKENS):
                    batch = [indices[place] for place in places]
                    if check_cancelled is not None:
                        check_cancelled()
                    arguments = checkpoint, [pieces[index] for index in batch], search.decoding, stepper, fusion
                    if width:
                        results = search_constrained(*arguments, check_cancelled)
                    else:
                        observer = None if progress is None else progress.observer(batch, reranked=search.reranked)
                        prepared = prepare_search(*arguments)
                        results = [(each, ()) for each in prepared.run(observer, check_cancelled)]
                    ranked = search.rank([each for each, _ in results], arguments[1], checkpoint)
                    for index, hypotheses, (_, warnings) in zip(batch, ranked, results, strict=True):
                        searched[index] = hypotheses, warnings
                        if progress is not None:
                            progress.complete(index, searched[index][0])
    except SearchError as error:
        raise LineError(lines[batch[error.sentence]], f"token {error.token}: {error.reason}") from None
    return searched


@inference_mode()
def search_together(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    groups: Iterable[Sequence[int]],
    settings: DecodingSettings,
    searcher: Stepper,
    fusion: Fusion | None = None,
    check_cancelled: CancelCheck | None = None,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield each piece's place in `pieces` and its hypotheses, best first, as soon as it is searched.

    groups: places of pieces that are encoded together. They share one search, which a group enters when those before
    have left it room: so its steps are full, and the device computes while results are read.
    The other arguments are those of `prepare_search`, the errors those of `PreparedSearch.run`; the sentence of a
    SearchError is such a place.
    """
    running: CompleteSearch | None = None
    places: dict[int, int] = {}  # by their numbers in the search

    def looped(prepared: PreparedSearch, batch: Sequence[int]) -> list[list[Hypothesis]]:
        try:
            return prepared.run_loop(None, check_cancelled)
        except SearchError as error:
            raise SearchError(error.reason, sentence=batch[error.sentence], token=error.token) from None

    def prepared_for(batch: Sequence[int]) -> PreparedSearch:
        return prepare_search(checkpoint, [pieces[place] for place in batch], settings, searcher, fusion)

    def searched(search: CompleteSearch, most: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Take steps until at most so many sentences are live."""
        while search.live > most:
            done = search.run(STEPS_PER_CALL)
            if check_cancelled is not None:
                check_cancelled()
            for number in done:
                place = places.pop(number)
                hypotheses = search.hypotheses(number)
                yield place, looped(prepared_for([place]), [place])[0] if hypotheses is None else hypotheses

    for group in groups:
        prepared = prepared_for(group)
        begun = prepared.begin_search(running)
        if begun is None and running is not None:
            yield from searched(running, 0)
            running.close()
            running, begun = None, prepared.begin_search()
        if begun is None:
            yield from zip(group, looped(prepared, group), strict=True)
            continue
        running, numbers = begun
        places |= dict(zip(numbers, group, strict=True))
        yield from searched(running, len(group))
    if running is not None:
        yield from searched(running, 0)
        running.close()


def describe_device_search(checkpoint: Checkpoint, settings: DecodingSettings) -> str:
    """Which way a search takes on a GPU: "search on the device", or "decoding loop: " and the reason."""
    from translume.decoding.device_step import UnsupportedSearchError
    from translume.translator.device_searcher import DeviceSearcher

    tokenizer, reasons = checkpoint.target_tokenizer, []
    if not checkpoint.model.decoder.crosses:
        reasons.append("a language model")
    for name in ("calibrated", "unsmooth", "timestamps"):
        if getattr(settings, name):
            reasons.append(f"decoding.{name}")
    if reads_ctc(settings):
        reasons.append("decoding.ctc_weight")
    try:
        strategy = strategy_from(settings, np.zeros(1, np.int64))
        rules = build_rules(tokenizer, [True], settings)
        DeviceSearcher(checkpoint.model).settings_of(strategy, rules, eos=tokenizer.specials.eos, prompt=1)
    except UnsupportedSearchError as error:
        reasons.append(str(error))
    return f"decoding loop: {', '.join(reasons)}" if reasons else "search on the device"


def start_of(steps: Stepper, *, needs_attention: bool) -> Callable[..., Any]:
    """The function that encodes sources, such as `Stepper.start`.  needs_attention: see `SearchPlan`."""
    if not needs_attention:
        return steps.start
    if isinstance(steps, AttentionStepper):
        return steps.start_with_attention
    raise ValueError(f"the search needs attention, and {type(steps).__name__} returns none")


def sources_for(steps: Stepper, checkpoint: Checkpoint, pieces: Sequence[Piece]) -> tuple[Any, Any]:
    """The sources of pieces and their mask as a stepper reads them: arrays for an engine, tensors for others."""
    specials = checkpoint.source_tokenizer.specials
    if isinstance(steps, Engine):
        return source_arrays(pieces, specials)
    return padded_sources(pieces, specials, None if checkpoint.on_cpu else checkpoint.device)


@inference_mode()
def prepare_search(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: DecodingSettings,
    stepper: Stepper | None = None,
    fusion: Fusion | None = None,
    encoded: Any = None,
) -> PreparedSearch:
    """Prepare a search for the hypotheses of pieces, as [decoding] demands.

    stepper: takes the steps instead of the checkpoint's plain model; it has the same vocabularies.
    fusion: a language model for ranking.
    encoded: what `start_of` returned for these pieces, if it was called.
    """
    steps: Stepper = stepper or checkpoint.model
    tokenizer = checkpoint.target_tokenizer
    forced = tokenizer.encode(settings.prefix)
    prefixes = [forced if piece.first else [] for piece in pieces]
    specials = tokenizer.specials
    device = None if checkpoint.on_cpu else checkpoint.device
    costs = [constraint_cost(piece.constraints, tokenizer) for piece in pieces]
    limits = np.array(
        [
            target_limit(checkpoint, len(piece.ids), len(prefix), settings, cost, len(piece.target_tags))
            for piece, prefix, cost in zip(pieces, prefixes, costs, strict=True)
        ]
    )
    if fusion is not None and fusion.longest is not None:
        limits = np.minimum(limits, fusion.longest)
    strategy = strategy_from(settings, sampling_keys(pieces) if makes_draws(settings) else None)
    if any(costs):
        width = constrained_beam_width(max(costs), settings)
        most = torch.from_numpy(limits).to(device)
        strategy = constrained_beam(strategy, [piece.constraints for piece in pieces], tokenizer, most, width)
    if encoded is None:
        start = start_of(steps, needs_attention=strategy.coverage is not None)
        encoded = start(*sources_for(steps, checkpoint, pieces))
    rules = build_rules(tokenizer, [bool(prefix) for prefix in prefixes], settings)
    if settings.timestamps:
        rules.append(times_rule(tokenizer, settings.latest_start))
    if reads_ctc(settings):
        rules.append(_ctc_rule(checkpoint, steps, encoded, settings.ctc_weight))
    temperature, unsmooth = temperature_of(checkpoint, settings), settings.unsmooth
    shaped = partial(reshaped, temperature=temperature, unsmooth=unsmooth)
    return PreparedSearch(
        stepper=steps,
        encoded=encoded,
        prompts=np.array([[specials.bos, *piece.target_tags] for piece in pieces]),
        eos=specials.eos,
        strategy=strategy,
        limits=limits,
        rules=rules,
        shape=None if temperature == 1.0 and not unsmooth else shaped,
        fusion=fusion,
        device=device,
        explain=partial(explain_search_error, checkpoint=checkpoint, settings=settings),
        draft=_draft_for(steps, checkpoint, pieces, settings),
    )


def _draft_for(
    steps: Stepper, checkpoint: Checkpoint, pieces: Sequence[Piece], settings: DecodingSettings
) -> Callable[..., SentenceDraft | None] | None:
    """What guesses the tokens of the only piece, if [decoding] names a draft and an engine takes the steps."""
    if not settings.draft or not isinstance(steps, Engine):
        return None
    draft = draft_of(checkpoint, steps, settings)
    if draft is None or len(pieces) > 1:
        return None
    return partial(draft.begin, *sources_for(steps, checkpoint, pieces))


def _ctc_rule(checkpoint: Checkpoint, steps: Stepper, state: Any, weight: float) -> "CtcPrefix":
    """The rule that adds log p of CTC to the sums of a search.  state: before the first token, with the memory."""
    from translume.decoding import CtcPrefix

    if isinstance(steps, Engine):
        log_probs = torch.from_numpy(steps.ctc_log_probs(state.memory))
    else:
        assert checkpoint.model.ctc is not None
        log_probs = checkpoint.model.ctc.log_probs(state.memory)
    mask, blank = torch.as_tensor(state.memory_mask), checkpoint.target_tokenizer.specials.bos
    return CtcPrefix(log_probs, mask, blank, _ctc_share(weight))


def reads_ctc(settings: DecodingSettings) -> bool:
    """Whether the search ranks by log p of CTC too. Samples are drawn from the decoder alone."""
    return settings.ctc_weight > 0 and settings.strategy in ("beam", "diverse")


def _ctc_share(weight: float) -> float:
    """The weight of log p of CTC in a sum with log p of the decoder, which the search ranks by."""
    return weight / max(1 - weight, 1e-3)


def temperature_of(checkpoint: Checkpoint, settings: DecodingSettings) -> float:
    """The temperature for ranking; 1 leaves the model's distribution as it is."""
    return checkpoint.temperature.value if settings.calibrated and checkpoint.temperature else 1.0


def context_room(checkpoint: Checkpoint, settings: DecodingSettings, piece: Piece) -> int:
    """The most tokens of context before a target: as in training if it is as long as the source, and as fit the model.

    The longest target that the piece may have fits after them.
    """
    cost = constraint_cost(piece.constraints, checkpoint.target_tokenizer)
    prefix = len(checkpoint.target_tokenizer.encode(settings.prefix)) if piece.first else 0
    limit = target_limit(checkpoint, len(piece.ids), prefix, settings, cost)
    longest = checkpoint.config.model.max_positions - len(piece.target_tags) - limit
    return min(longest, checkpoint.config.data.cleaning.max_tokens - len(piece.ids))


def target_limit(
    model: Checkpoint, length: int, prefix: int, settings: DecodingSettings, cost: int = 0, prompt: int = 0
) -> int:
    """The maximum number of target tokens, EOS included.

    It follows from the lengths in the training data unless the settings have one; for a model that does not know
    these lengths, it is twice the source's length and 10 more.
    length: source tokens without EOS.  prefix: forced target tokens.  cost: tokens that the constraints need,
    which every limit but `max_length` and the model's own leaves room for.  prompt: tokens of tags and context.
    """
    longest = model.config.model.max_positions - max(prompt, model.config.model.target_tags)
    ratio, extra = settings.max_length_ratio, settings.max_length_extra
    if ratio or extra:
        limit = int((ratio or DEFAULT_RATIO) * length) + (extra or DEFAULT_EXTRA)
    elif settings.max_length:
        return min(settings.max_length, longest)
    elif model.lengths is not None:
        limit = model.lengths.target_limit(length)
    else:
        limit = int(DEFAULT_RATIO * length) + DEFAULT_EXTRA
    limit = max(limit, cost + 1) + prefix
    if settings.max_length:
        limit = min(limit, settings.max_length)
    return min(limit, longest)


def sampling_keys(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    """[B], a key for the random numbers of each piece. It depends on its ids alone, not on its place in a batch."""
    return np.array([_hash(piece.read_ids + piece.target_tags) for piece in pieces], np.int64)


def _hash(ids: Sequence[int]) -> int:
    """FNV-1a over ids, in 63 bits."""
    key = 0xCBF29CE484222325
    for each in ids:
        key = ((key ^ (each + 1)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return key >> 1


def add_constraints(
    plan: LinePlan, checkpoint: Checkpoint, settings: DecodingSettings, terminology: Terminology | None
) -> LinePlan:
    """The plan with the constraints of each piece, and warnings about those that cannot be met.

    A term belongs to the first piece that contains it, a placeholder to its own piece. A phrase of the line's own
    constraints belongs to the first piece whose source contains it (names, numbers), else to the first piece.
    """
    filled = [number for number, piece in enumerate(plan.pieces) if piece.ids]
    if not filled:
        return plan
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    texts = [source.normalise(piece.text) for piece in plan.pieces]
    placed: list[tuple[int, tuple[str, ...], Constraint | None]] = []
    for text in plan.line.constraints:
        if not target.normalise(text).strip():
            raise LineError(plan.line, f"found a constraint without a word, {text!r}, expected a word or a phrase")
        words = words_of(source.normalise(text))
        holders = [number for number in filled if _contains(words_of(texts[number]), words)]
        placed.append(((holders or filled)[0], (text,), build_constraint([text], target)))
    terms: dict[Words, tuple[int, tuple[str, ...], Constraint | None]] = {}
    for number in filled:
        for term in terminology.found_in(texts[number]) if terminology else ():
            terms.setdefault(term.source, (number, term.targets, term.constraint))
        for text in placeholders_of(plan.pieces[number].text, settings.placeholders):
            placed.append((number, (text,), build_constraint([text], target)))
    by_piece: list[list[Constraint]] = [[] for _ in plan.pieces]
    warnings = []
    for number, names, constraint in (*placed, *terms.values()):
        if constraint is None:
            warnings.append(f"{UNMET}: {' or '.join(map(repr, names))}: {_UNWRITABLE}")
        else:
            by_piece[number].append(constraint)
    pieces = []
    for piece, constraints in zip(plan.pieces, by_piece, strict=True):
        fitted, more = _drop_too_long(replace(piece, constraints=tuple(constraints)), checkpoint, settings)
        pieces.append(fitted)
        warnings += more
    return replace(plan, pieces=tuple(pieces), warnings=(*plan.warnings, *warnings))


def constrained_width(piece: Piece, checkpoint: Checkpoint, settings: DecodingSettings) -> int:
    """The beam width for a piece with constraints."""
    return constrained_beam_width(constraint_cost(piece.constraints, checkpoint.target_tokenizer), settings)


def search_constrained(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: DecodingSettings,
    stepper: Stepper,
    fusion: Fusion | None,
    check_cancelled: CancelCheck | None,
) -> list[tuple[list[Hypothesis], tuple[str, ...]]]:
    """The hypotheses of pieces with constraints, and warnings about constraints that are not met.

    check_cancelled: see `PreparedSearch.run`.
    If the best hypothesis of a piece misses some, the piece is searched again without one of them, with a warning.
    """
    searched: dict[int, tuple[list[Hypothesis], tuple[str, ...]]] = {}
    warnings: list[list[str]] = [[] for _ in pieces]
    current = list(pieces)

    def width(number: int) -> int:
        return constrained_width(current[number], checkpoint, settings)

    while rest := [number for number in range(len(pieces)) if number not in searched]:
        for _, group in groupby(sorted(rest, key=width), key=width):
            numbers = list(group)
            try:
                prepared = prepare_search(checkpoint, [current[each] for each in numbers], settings, stepper, fusion)
                results = prepared.run(check_cancelled=check_cancelled)
            except SearchError as error:
                raise SearchError(error.reason, sentence=numbers[error.sentence], token=error.token) from None
            for number, hypotheses in zip(numbers, results, strict=True):
                text = checkpoint.target_tokenizer.decode(hypotheses[0].tokens)
                unmet = unmet_constraints(text, current[number].constraints)
                if unmet:
                    current[number], warning = _drop_one(current[number], unmet, checkpoint, settings)
                    warnings[number].append(warning)
                else:
                    searched[number] = hypotheses, tuple(warnings[number])
    return [searched[number] for number in range(len(pieces))]


def _drop_too_long(piece: Piece, checkpoint: Checkpoint, settings: DecodingSettings) -> tuple[Piece, list[str]]:
    """The piece without the constraints, from the last, for which its limit has no room, and warnings about them."""
    kept, warnings = list(piece.constraints), []
    tokenizer = checkpoint.target_tokenizer
    prefix = len(tokenizer.encode(settings.prefix)) if piece.first else 0
    cost = constraint_cost(kept, tokenizer)
    while kept:
        limit = target_limit(checkpoint, len(piece.ids), prefix, settings, cost)
        if prefix + cost <= limit:
            break
        cost -= constraint_cost(kept[-1:], tokenizer)
        warnings.append(f"{UNMET}: {kept.pop().name}: the limit of {limit:,} tokens leaves no room for it")
    return replace(piece, constraints=tuple(kept)), warnings[::-1]


def _drop_one(
    piece: Piece, unmet: Sequence[Constraint], checkpoint: Checkpoint, settings: DecodingSettings
) -> tuple[Piece, str]:
    """The piece without one of its unmet constraints, preferably one that a rule forbids, and a warning.

    Only one at a time: the others may be met then.
    """
    rules = [[forbidding_rule(checkpoint, piece, settings, phrase.ids) for phrase in each.phrases] for each in unmet]
    place = next((number for number, names in enumerate(rules) if all(names)), None)
    if place is None:
        constraint, reason = unmet[-1], "within the limit nothing that is possible and allowed leads to it"
    else:
        names = dict.fromkeys(name for name in rules[place] if name)
        constraint, reason = unmet[place], f"a rule forbids it ({', '.join(names)})"
    kept = list(piece.constraints)
    kept.remove(constraint)
    return replace(piece, constraints=tuple(kept)), f"{UNMET}: {constraint.name}: {reason}"


def forbidding_rule(checkpoint: Checkpoint, piece: Piece, settings: DecodingSettings, ids: Sequence[int]) -> str | None:
    """The name of a rule that forbids `ids` right after the prefix of a piece; None if there is none."""
    tokenizer = checkpoint.target_tokenizer
    begin = tokenizer.encode(settings.prefix) if piece.first else []
    limit = target_limit(checkpoint, len(piece.ids), len(begin), settings, len(ids))
    for rule in build_rules(tokenizer, [bool(begin)], settings):
        for place, token in enumerate(ids):
            prefix = torch.tensor([[tokenizer.specials.bos, *begin, *ids[:place]]])
            context = RuleContext(
                eos=tokenizer.specials.eos,
                size=len(tokenizer),
                step=prefix.size(1) - 1,
                sentences=torch.tensor([0]),
                limits=torch.tensor([limit]),
            )
            bias = rule(prefix, context)
            if bias is not None and bool(bias.values_of(torch.tensor([[token]])).isneginf()):
                return type(rule).__name__
    return None


def _contains(words: Sequence[str], phrase: Sequence[str]) -> bool:
    size = len(phrase)
    return any(tuple(words[place : place + size]) == tuple(phrase) for place in range(len(words) - size + 1))
