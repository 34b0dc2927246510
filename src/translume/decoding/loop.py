"""The decoding loop and the search built on it. Streaming, recording and early stopping consume the loop's beams."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, Literal, Protocol, TypeGuard

from translume.belief import BeliefError, Bias, NextToken
from translume.decoding.beam import Beam, BeamStatus, Candidates, Ending, Hypothesis, ScoreTerms, SearchError
from translume.decoding.rules import BeliefRule, Rule, RuleContext, end_tokens, total_lift
from translume.decoding.step import S, SearchState, Step, Stepper, attention_of
from translume.decoding.strategy import Strategy
from translume.lazy import Tensor, inference_mode, torch

CHUNK = 32
"""Number of columns by which the token matrix grows."""


@inference_mode()
def decode(
    step: Step[S], state: S, *, bos: int, eos: int, strategy: Strategy, limits: Tensor, rules: Sequence[Rule] = ()
) -> Iterator[Beam]:
    """Yield the beam after every step, until every sentence is done.

    state: of B rows, one per sentence; an `AttentionState` if the strategy has a coverage penalty.
    limits: [B], at least 1, on the model's device: maximum tokens of each sentence's hypotheses, a forced prefix and
    eos counted.
    The first step reads one row per sentence. Later steps read `strategy.width` rows per sentence, in order of
    sentences, and leave out sentences that are done.
    Raises SearchError if a distribution contains a NaN, or if no possible token is allowed.
    """
    return Search(step, state, bos=bos, eos=eos, strategy=strategy, limits=limits, rules=rules).beams()


class Search(Generic[S]):
    """The state of the decoding loop between two steps, for the B sentences still searched; N = B·K rows.

    Arguments and errors are those of `decode`.  over: whether no sentence is left.
    """

    def __init__(
        self,
        step: Step[S],
        state: S,
        *,
        bos: int,
        eos: int,
        strategy: Strategy,
        limits: Tensor,
        rules: Sequence[Rule] = (),
    ) -> None:
        size = limits.numel()
        if size and int(limits.min()) < 1:
            raise ValueError(f"a limit is {int(limits.min())} tokens, expected at least 1")
        self.step, self.state, self.over = step, state, size == 0
        self.rules, self.lift = rules, total_lift(rules)
        self.belief_rules = [rule for rule in rules if isinstance(rule, BeliefRule)]
        zeros = torch.zeros(size, 1, device=limits.device)
        self.strategy, self.eos = strategy, eos
        ending = end_tokens(rules, eos)
        self.ending = None if ending == (eos,) else torch.tensor(ending, device=limits.device)
        self.length = 0  # t
        self.limits = limits  # [B]
        self.ends = set(limits.tolist())
        self.leaving = False  # whether a sentence ends with the last step
        self.tokens = limits.new_full((size, 1 + CHUNK), bos, dtype=torch.long)  # [N, …], columns above t are unused
        self.log_probs = zeros.new_zeros(size, 1 + CHUNK)  # [N, …], log_prob after each column of tokens
        self.groups, self.each = strategy.groups, strategy.width // strategy.groups  # G, K/G
        # Of each group: scores of finished hypotheses, best first, [B, G, nbest], and how many finished, [B, G].
        self.best = zeros.new_full((size, self.groups, min(strategy.nbest, self.each)), -math.inf)
        self.ended = limits.new_zeros((size, self.groups), dtype=torch.long)
        self.attended: Tensor | None = None  # [N, S], sums of attention; None without a coverage penalty
        self.beam = Beam(
            sentences=torch.arange(size, device=limits.device),
            tokens=self.tokens[:, None, 1:1],
            log_prob=zeros,
            total=zeros,
            score=zeros,
            origin=zeros.long(),
            finished=zeros[:, 0].bool(),
        )
        if size:
            self.read(state)

    @property
    def prefix(self) -> Tensor:
        """[N, 1 + t], bos first."""
        return self.tokens[:, : 1 + self.length]

    @inference_mode()
    def beams(self) -> Iterator[Beam]:
        """Yield the beam after every remaining step."""
        while not self.over:
            yield self.take(*self.step(self.prefix, self.state))

    def take(self, belief: NextToken, state: S) -> Beam:
        """Advance by one token, given the step's result for `prefix` and `state`; return the new beam."""
        self.read(state)
        rows = self.advance(self.choose(belief, self.bias(belief)))
        beam = self.beam
        rows = self.leave(rows, belief.rows)
        self.over = self.leaving and not self.limits.numel()
        self.state = state if rows is None or self.over else state.select(rows)
        return beam

    def read(self, state: SearchState) -> None:
        """Add up the attention of the last step if the coverage penalty needs it."""
        if self.strategy.coverage is None:
            return
        attention = attention_of(state)
        if attention is None:
            raise ValueError("the coverage penalty needs attention, which the states of this step do not report")
        self.attended = attention.float() if self.attended is None else self.attended + attention

    def bias(self, belief: NextToken) -> Bias | None:
        """Return the joint bias of all rules."""
        if not self.rules:
            return None
        width = self.beam.width
        context = RuleContext(
            eos=self.eos,
            size=belief.size,
            step=self.length,
            sentences=self.beam.sentences if width == 1 else self.beam.sentences.repeat_interleave(width),
            limits=self.limits if width == 1 else self.limits.repeat_interleave(width),
        )
        biases = (rule(self.prefix, context) for rule in self.rules)
        joined = Bias.join([bias for bias in biases if bias is not None])
        for rule in self.belief_rules:
            joined = Bias.join([bias for bias in (joined, rule.after(belief, joined)) if bias is not None])
        return joined

    def choose(self, belief: NextToken, bias: Bias | None) -> Candidates:
        """Return the strategy's candidates, filled up to at least K per sentence."""
        try:
            candidates = self.strategy.choose(self.beam, belief, bias)
        except BeliefError as error:
            raise self._error(error.row // self.beam.width, str(error)) from error
        if candidates.total.isnan().any():
            place = int(candidates.total.isnan().nonzero()[0, 0])
            raise self._error(place, "its distribution contains a NaN")
        return candidates.filled(self.strategy.width)

    def advance(self, candidates: Candidates) -> Tensor | None:
        """Make the next beam. Return the row that each of its rows continues, [B·K]; None: each its own."""
        width, before = self.strategy.width, self.beam
        count = before.sentences.numel()
        first = torch.arange(count, device=self.limits.device)[:, None]
        if before.width > 1:
            first = first * before.width
        foremost, going, ending = self._part(candidates)
        ended = [] if ending is None else self._endings(foremost, ending, first, "eos")
        score, coverage = self._scores(going)
        last = None
        if self.length + 1 in self.ends:
            last = self.limits == self.length + 1
            ended += self._endings(going, last[:, None] & ~going.total.isneginf(), first, "length")
        rows = None if width == before.width == 1 else _moved((first + going.origin).flatten(), self.tokens.size(0))
        self._append(rows, going)
        totals = going.total.view(-1, self.each)
        status = BeamStatus(
            length=self.length,
            limits=self.limits if self.groups == 1 else self.limits.repeat_interleave(self.groups),
            total=totals,
            best=self.best.flatten(0, 1),
            ended=self.ended.flatten(),
            lift=self.lift,
        )
        done = self.strategy.done(status) | totals.amax(1).isneginf()
        if self.groups > 1:
            done = done.view(count, -1).all(1)
        done = done if last is None else done | last
        self.leaving = bool(done.any())
        if self.leaving:
            self._check_not_empty(done)
        self.beam = Beam(
            sentences=before.sentences,
            tokens=self.prefix[:, 1:].view(count, width, self.length),
            log_prob=going.log_prob,
            total=going.total,
            score=score,
            origin=going.origin,
            finished=done,
            coverage=coverage,
            carried=going.carried,
            ended=tuple(sorted(ended, key=lambda ending: (ending.sentence, -ending.hypothesis.score))),
        )
        return rows

    def leave(self, rows: Tensor | None, count: int) -> Tensor | None:
        """Remove sentences that are done. Return the rows of the state that the remaining rows continue; see `advance`.

        rows: as returned by `advance`.  count: rows of the state.
        """
        beam = self.beam
        if not self.leaving:
            return rows
        rows = torch.arange(count, device=self.limits.device) if rows is None else rows
        stay = (~beam.finished).nonzero()[:, 0]
        kept = (stay[:, None] * beam.width + torch.arange(beam.width, device=rows.device)).flatten()
        self.tokens, self.log_probs = self.tokens.index_select(0, kept), self.log_probs.index_select(0, kept)
        self.limits, self.best, self.ended = self.limits[stay], self.best[stay], self.ended[stay]
        self.attended = None if self.attended is None else self.attended.index_select(0, kept)
        self.beam = Beam(
            sentences=beam.sentences[stay],
            tokens=self.prefix[:, 1:].view(stay.numel(), beam.width, self.length),
            log_prob=beam.log_prob[stay],
            total=beam.total[stay],
            score=beam.score[stay],
            origin=beam.origin[stay],
            finished=beam.finished[stay],
            coverage=None if beam.coverage is None else beam.coverage[stay],
            carried=None if beam.carried is None else beam.carried[stay],
        )
        return rows.index_select(0, kept)

    def _part(self, candidates: Candidates) -> tuple[Candidates, Candidates, Tensor | None]:
        """Split into the first K, the K that continue, and which [B, K] of the first finish with eos (None: none).

        With groups, within each group.
        """
        token = candidates.token
        ends = token == self.eos if self.ending is None else torch.isin(token, self.ending)
        any_ends = bool(ends.any())
        if not any_ends and self.groups == 1:
            foremost = candidates.foremost(self.each)
            return foremost, foremost, None
        apart = ends.view(ends.size(0), self.groups, -1)  # [B, G, W/G]
        begin = torch.arange(self.groups, device=ends.device)[:, None] * apart.size(2)
        places = (begin + torch.arange(self.each, device=ends.device)).flatten().expand(ends.size(0), -1)
        foremost = candidates.take(places)
        if not any_ends:
            return foremost, foremost, None
        ends.logical_and_(~candidates.total.isneginf())
        which = ends.gather(1, places)
        places = (begin + apart.byte().sort(dim=2, stable=True).indices[:, :, : self.each]).flatten(1)
        going = candidates.take(places)
        # With fewer than K others, the remaining places contain candidates that end with eos: mark them as empty.
        dead = ends.gather(1, places)
        total = going.total.masked_fill(dead, -math.inf)
        going = replace(going, total=total)
        return foremost, going, which

    def _scores(self, candidates: Candidates) -> tuple[Tensor, Tensor | None]:
        """Return the scores of candidates [B, K] if they ended now, and the coverage penalty in them or None."""
        score = self.strategy.length_penalty.score(candidates.total, self.length + 1)
        if self.attended is None or self.strategy.coverage is None:
            return score, None
        coverage = self.strategy.coverage.score(self.attended).view(score.size(0), -1).gather(1, candidates.origin)
        return score + coverage, coverage

    def _endings(
        self, candidates: Candidates, which: Tensor, first: Tensor, by: Literal["eos", "length"]
    ) -> list[Ending]:
        """Return the `candidates` [B, K] that `which` [B, K] marks as finished; update `best` and `ended`."""
        scores, coverage = self._scores(candidates)
        nowhere = scores.masked_fill(~which, -math.inf).view(*self.ended.shape, -1)
        self.best = torch.cat([self.best, nowhere], 2).topk(self.best.size(2), 2).values
        self.ended = self.ended + which.view(*self.ended.shape, -1).sum(2)
        divisor = self.strategy.length_penalty.divisor(float(self.length + 1))
        sentence, place = which.nonzero(as_tuple=True)
        origin = candidates.origin[sentence, place]
        row = first[sentence, 0] + origin
        tokens = torch.cat([self.tokens[row, 1 : 1 + self.length], candidates.token[sentence, place, None]], 1)
        log_probs = torch.cat(
            [self.log_probs[row, : 1 + self.length], candidates.log_prob[sentence, place, None]], 1
        ).diff(dim=1)
        columns = (
            self.beam.sentences[sentence].tolist(),
            origin.tolist(),
            (place // self.each).tolist(),
            tokens.tolist(),
            log_probs.tolist(),
            candidates.log_prob[sentence, place].tolist(),
            scores[sentence, place].tolist(),
            candidates.total[sentence, place].tolist(),
            [0.0] * place.numel() if coverage is None else coverage[sentence, place].tolist(),
        )
        return [
            Ending(
                sentence=number,
                origin=parent,
                group=group,
                hypothesis=Hypothesis(
                    tokens=tuple(ids),
                    log_prob=log_prob,
                    log_probs=tuple(own),
                    score=score,
                    terms=ScoreTerms(total=total, divisor=divisor, coverage=covered),
                    finished_by=by,
                ),
            )
            for number, parent, group, ids, own, log_prob, score, total, covered in zip(*columns, strict=True)
        ]

    def _append(self, rows: Tensor | None, going: Candidates) -> None:
        """Reorder tokens by `rows` and append one column. Views held by earlier beams do not change."""
        if rows is not None:
            self.tokens = self.tokens.index_select(0, rows)
            self.log_probs = self.log_probs.index_select(0, rows)
            self.attended = None if self.attended is None else self.attended.index_select(0, rows)
        self.length += 1
        if self.length == self.tokens.size(1):
            self.tokens = torch.nn.functional.pad(self.tokens, (0, CHUNK))
            self.log_probs = torch.nn.functional.pad(self.log_probs, (0, CHUNK))
        self.tokens[:, self.length] = going.token.flatten()
        self.log_probs[:, self.length] = going.log_prob.flatten()

    def _check_not_empty(self, done: Tensor) -> None:
        """Raise SearchError if a sentence ends without a hypothesis."""
        empty = done & (self.ended.sum(1) == 0)
        if bool(empty.any()):
            names = ", ".join(type(rule).__name__ for rule in self.rules) or "none"
            reason = f"every next token is impossible or forbidden, expected one that is neither (rules: {names})"
            raise self._error(int(empty.nonzero()[0, 0]), reason, before=True)

    def _error(self, place: int, reason: str, *, before: bool = False) -> SearchError:
        number = int(self.beam.sentences[place])
        return SearchError(reason, sentence=number, token=self.length + (0 if before else 1))


def _moved(rows: Tensor, count: int) -> Tensor | None:
    """Return the rows, or None if they are all `count` rows in order."""
    same = rows.numel() == count and bool((rows == torch.arange(count, device=rows.device)).all())
    return None if same else rows


def search(
    step: Step[S], state: S, *, bos: int, eos: int, strategy: Strategy, limits: Tensor, rules: Sequence[Rule] = ()
) -> list[list[Hypothesis]]:
    """Return for each sentence its 1 to `strategy.nbest` best finished hypotheses, best first.

    Ranked by score alone, whether eos or the limit finished them; ties go to the one that finished earlier.
    Hypotheses found by several groups of a strategy are returned once; a group of K/G hypotheses contributes at most
    K/G. Only strategies that draw, such as `Sampling`, return equal hypotheses.
    The arguments and errors are those of `decode`.
    """
    beams = decode(step, state, bos=bos, eos=eos, strategy=strategy, limits=limits, rules=rules)
    return best_of(beams, strategy, limits.numel())


def best_of(beams: Iterable[Beam], strategy: Strategy, count: int) -> list[list[Hypothesis]]:
    """Return what `search` returns for `count` sentences, from the beams of `decode`, all of which are consumed."""
    best = BestHypotheses(strategy, count)
    for beam in beams:
        best.add(beam)
    return [best.hypotheses(number) for number in range(count)]


class BestHypotheses:
    """Collects the finished hypotheses of a search and returns the best of each sentence."""

    def __init__(self, strategy: Strategy, count: int) -> None:
        """count: B."""
        self._strategy = strategy
        self._finished: list[list[Hypothesis]] = [[] for _ in range(count * strategy.groups)]

    def add(self, beam: Beam) -> None:
        """Add the hypotheses that finished in a step."""
        for ending in beam.ended:
            self._finished[ending.sentence * self._strategy.groups + ending.group].append(ending.hypothesis)

    def hypotheses(self, sentence: int) -> list[Hypothesis]:
        """Return what `search` returns for one sentence, once its search is done."""
        strategy, groups = self._strategy, self._strategy.groups
        per_group = min(strategy.nbest, strategy.width // groups)
        finished = self._finished[sentence * groups : (sentence + 1) * groups]
        best = [sorted(group, key=_worst_last)[:per_group] for group in finished]
        if groups == 1:
            return best[0]
        by_tokens: dict[tuple[int, ...], Hypothesis] = {}
        for hypothesis in sorted(chain(*best), key=_worst_last):
            by_tokens.setdefault(hypothesis.tokens, hypothesis)
        return list(by_tokens.values())[: strategy.nbest]


def _worst_last(hypothesis: Hypothesis) -> float:
    return -hypothesis.score


class CompleteSearch(Protocol):
    """A search that runs outside the decoding loop, such as in compiled kernels, and shows no beams.

    Its sentences have numbers. They may enter at different times, and each leaves when it is done.
    """

    @property
    def live(self) -> int:
        """The number of sentences that are not done."""

    def run(self, steps: int) -> Sequence[int]:
        """Take up to `steps` steps with all live sentences; return the numbers of those that are done now."""

    def hypotheses(self, number: int) -> list[Hypothesis] | None:
        """Return exactly what `search` returns for a sentence that is done, and forget it.

        None: run the loop, which may raise an error.
        """

    def stable_prefix(self, number: int, *, every: bool) -> list[int]:
        """Return the tokens with which the best hypothesis of a sentence is certain to begin; see `StablePrefix`.

        every: any finished hypothesis may become the best one, as with reranking.
        """

    def remove(self, number: int) -> None:
        """Forget a sentence, whether it is done or not."""

    def close(self) -> None:
        """Let later searches use its memory. It must have no sentences, and must not be used any more."""


class CompleteSearcher(Stepper, Protocol):
    """A stepper that can run some searches itself."""

    def complete_search(
        self,
        state: Any,
        *,
        prompts: Tensor,
        eos: int,
        strategy: Strategy,
        limits: Tensor,
        rules: Sequence[Rule],
        running: CompleteSearch | None = None,
    ) -> tuple[CompleteSearch, Sequence[int]] | None:
        """Return a search equivalent to `decode` with these arguments, and the numbers of the sentences there.

        prompts: [B, P], see `PromptedState`; [B, 1], bos, for a search without.
        running: a search that the sentences enter; otherwise it is a new one.
        None: the search is not supported, or not the same as the running one. The search uses buffers of its own, so
        the loop can still use the state.
        """


def runs_searches(stepper: Stepper) -> TypeGuard[CompleteSearcher]:
    """Return whether a stepper is a `CompleteSearcher`; much faster than `isinstance` with a protocol."""
    return hasattr(stepper, "complete_search")
