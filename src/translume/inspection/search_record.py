"""Record a search: every hypothesis it considered and what became of it."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from translume.belief import Bias, NextToken
from translume.config import DecodingSettings
from translume.decoding import Beam, Candidates, Ending, Hypothesis, LengthPenalty, Strategy
from translume.errors import suggest_keywords
from translume.inspection.inputs import SentenceSearch, check_length
from translume.inspection.values import BeamRecord, Fate, Node, Target, Verdict
from translume.lazy import Tensor, inference_mode
from translume.text import Tokenizer
from translume.translator import Translator
from translume.translator.translator import Source


@suggest_keywords
def record_beam(
    translator: Translator, source: Source, *, reference: str | None = None, settings: DecodingSettings | None = None
) -> BeamRecord:
    """Record the search of one sentence, and compare it with greedy search and, if given, a reference.

    The result is the best hypothesis by score, even if the settings rank translations by a utility. Raises
    TranslationError for a blank source, for a side that is longer than the model reads, or if rules forbid all targets.
    """
    search = SentenceSearch.from_source(translator, source, settings)
    tokenizer = translator.checkpoint.target_tokenizer
    tree = _record(search, tokenizer)
    finished = tree.finished()
    greedy = _target(search.best(greedy=True), tree, tokenizer)
    target = None if reference is None else _reference(search, reference, tree, tokenizer)
    penalty = LengthPenalty.from_settings(search.settings)
    return BeamRecord(
        schema="beam/1",
        source=search.text,
        strategy=search.settings.strategy,
        width=tree.width,
        length_penalty=penalty.exponent,
        length_penalty_form=penalty.form,
        nodes=tuple(tree.nodes),
        finished=finished,
        greedy=greedy,
        beat_greedy=_scores_above(finished[0], greedy),
        reference=target,
        verdict=_verdict(finished[0], target),
    )


def _scores_above(one: Target, other: Target) -> bool:
    return one.score is not None and (other.score is None or one.score > other.score)


def _verdict(best: Target, reference: Target | None) -> Verdict:
    if reference is None:
        return ""
    if reference.ids == best.ids:
        return "same"
    if reference.score is None:
        return "forbidden"
    return "search error" if _scores_above(reference, best) else "model error"


class RecordingStrategy:
    """A strategy for one sentence that keeps the candidates of its last step; all else is that of another strategy.

    forbidden: [rows], the hypotheses without any continuation that rules allow.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.candidates: Candidates
        self.forbidden: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def choose(self, beam: Beam, belief: NextToken, bias: Bias | None) -> Candidates:
        self.candidates = self._strategy.choose(beam, belief, bias)
        self.forbidden = belief.topk(1, bias).ranks_by[:, 0].isneginf()
        return self.candidates


@dataclass(slots=True)
class _SearchTree:
    """The nodes so far; places: the node ids of the beam, None at the start and for an empty place."""

    width: int
    tokenizer: Tokenizer
    penalty: LengthPenalty
    covered: bool
    nodes: list[Node] = field(default_factory=list)
    places: list[int | None] = field(default_factory=lambda: [None])
    ended: list[tuple[Hypothesis, int]] = field(default_factory=list)

    def grow(self, candidates: Candidates, forbidden: Sequence[bool], beam: Beam) -> None:
        """Add one step: the candidates [1, W] it considered, and the ones that `beam` kept or finished."""
        new_nodes = self._expand(candidates, beam.tokens.size(2))
        parents = self.places
        kept: set[int] = set()
        places: list[int | None] = []
        columns = (
            beam.origin[0].tolist(),
            beam.tokens[0, :, -1].tolist(),
            beam.total[0].tolist(),
            beam.score[0].tolist(),
        )
        coverage = [0.0] * beam.width if beam.coverage is None else beam.coverage[0].tolist()
        for place, (origin, token, total, score) in enumerate(zip(*columns, strict=True)):
            if total == -math.inf:
                places.append(None)
                continue
            number = new_nodes[origin, token].pop(0)
            self.nodes[number] = replace(
                self.nodes[number], fate="stopped", place=place, score=score, coverage=coverage[place]
            )
            places.append(number)
            kept.add(number)
        kept |= {self._finish(ending, new_nodes, places) for ending in beam.ended}
        self._assign_fates(parents, kept, forbidden)
        self.places = places

    def _expand(self, candidates: Candidates, length: int) -> dict[tuple[int, int], list[int]]:
        """Add a node for each candidate; return their ids by (origin, token). Their initial fate is "outscored"."""
        columns = (
            each[0].tolist() for each in (candidates.origin, candidates.token, candidates.log_prob, candidates.total)
        )
        divisor = float(self.penalty.divisor(float(length)))
        new_nodes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for origin, token, log_prob, total in zip(*columns, strict=True):
            parent = self.places[origin]
            if total == -math.inf or (parent is None and length > 1):
                continue
            before = 0.0 if parent is None else self.nodes[parent].log_prob
            new_nodes[origin, token].append(len(self.nodes))
            self.nodes.append(
                Node(
                    id=len(self.nodes),
                    parent=parent,
                    length=length,
                    token=token,
                    text=self.tokenizer.tokens([token])[0],
                    log_p=log_prob - before,
                    log_prob=log_prob,
                    total=total,
                    divisor=divisor,
                    coverage=None if self.covered else 0.0,
                    score=None if self.covered else total / divisor,
                    place=None,
                    fate="outscored",
                )
            )
        return new_nodes

    def _finish(self, ending: Ending, new_nodes: dict[tuple[int, int], list[int]], places: Sequence[int | None]) -> int:
        """Mark the node of a hypothesis that finished in this step, and return its id."""
        if ending.hypothesis.finished_by == "eos":
            number = new_nodes[ending.origin, ending.hypothesis.tokens[-1]].pop(0)
        else:
            taken = {number for _, number in self.ended}
            number = next(
                each
                for each in places
                if each is not None and each not in taken and self._tokens(each) == ending.hypothesis.tokens
            )
        self.nodes[number] = replace(
            self.nodes[number],
            fate="finished",
            score=ending.hypothesis.score,
            coverage=ending.hypothesis.terms.coverage,
        )
        self.ended.append((ending.hypothesis, number))
        return number

    def _assign_fates(self, parents: Sequence[int | None], kept: set[int], forbidden: Sequence[bool]) -> None:
        """Set the fate of each hypothesis that was in the beam before this step; kept: the nodes that survived."""
        continued = {self.nodes[each].parent for each in kept}
        for number, nothing_allowed in zip(parents, forbidden, strict=True):
            if number is None:
                continue
            fate: Fate = "continued" if number in continued else "forbidden" if nothing_allowed else "outscored"
            self.nodes[number] = replace(self.nodes[number], fate=fate)

    def _tokens(self, number: int) -> tuple[int, ...]:
        tokens: list[int] = []
        at: int | None = number
        while at is not None:
            tokens.append(self.nodes[at].token)
            at = self.nodes[at].parent
        return tuple(reversed(tokens))

    def finished(self) -> tuple[Target, ...]:
        """Return the finished targets, best first, and mark the first one's node as the result."""
        ended = sorted(self.ended, key=lambda each: -each[0].score)
        best, number = ended[0]
        fate: Fate = "best" if best.finished_by == "eos" else "length"
        self.nodes[number] = replace(self.nodes[number], fate=fate)
        return tuple(_target(hypothesis, self, self.tokenizer) for hypothesis, _ in ended)

    def node_of(self, ids: tuple[int, ...]) -> int | None:
        """Return the node id of a finished target."""
        return next((number for hypothesis, number in self.ended if hypothesis.tokens == ids), None)


@inference_mode()
def _record(search: SentenceSearch, tokenizer: Tokenizer) -> _SearchTree:
    ready = search.prepare()
    strategy = RecordingStrategy(ready.strategy)
    tree = _SearchTree(strategy.width, tokenizer, strategy.length_penalty, strategy.coverage is not None)
    for beam in replace(ready, strategy=strategy).beams():
        tree.grow(strategy.candidates, strategy.forbidden.tolist(), beam)
    return tree


def _target(hypothesis: Hypothesis, tree: _SearchTree, tokenizer: Tokenizer) -> Target:
    return Target(
        text=tokenizer.decode(hypothesis.tokens),
        tokens=tuple(tokenizer.tokens(hypothesis.tokens)),
        ids=hypothesis.tokens,
        log_prob=hypothesis.log_prob,
        total=hypothesis.terms.total,
        score=hypothesis.score,
        finished_by=hypothesis.finished_by,
        node=tree.node_of(hypothesis.tokens),
    )


def _reference(search: SentenceSearch, text: str, tree: _SearchTree, tokenizer: Tokenizer) -> Target:
    """Score a given target as the search would; if rules forbid it, with the model's own log_prob alone."""
    ids = (*tokenizer.encode(text), tokenizer.specials.eos)
    check_length(search.translator.checkpoint, "reference", ids)
    hypothesis = search.forced(ids)
    if hypothesis is not None:
        return _target(hypothesis, tree, tokenizer)
    return Target(
        text=tokenizer.decode(ids),
        tokens=tuple(tokenizer.tokens(ids)),
        ids=ids,
        log_prob=search.translator.score(search.text, text).log_prob,
        total=-math.inf,
        score=None,
        finished_by="eos",
        node=None,
    )
