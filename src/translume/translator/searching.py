"""From the pieces of lines to hypotheses: what settings ask of a search, put together."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import (
    AttentionStepper,
    Beam,
    BestHypotheses,
    CompleteSearcher,
    Fusion,
    Hypothesis,
    Rule,
    RuleContext,
    SearchError,
    SearchObserver,
    Step,
    Stepper,
    Strategy,
    decode,
    reshaped,
    strategy_from,
)
from translume.translator.constraints import constrained_beam, cost_of, width_of
from translume.translator.plan import Piece
from translume.translator.progress import WhileWanted
from translume.translator.rules import explained, rules_of
from translume.translator.tensors import padded

SOME = 8
"""Steps that a stepper takes by itself before Python may hear of Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that a search of some pieces takes, in the words of `decode`.

    step: with beliefs of the shape that the settings ask for.  state: before the first step.
    searcher: the stepper, if it can do a whole search and `step` is its own step.
    """

    step: Step[Any]
    state: Any
    bos: int
    eos: int
    strategy: Strategy
    limits: Tensor
    rules: Sequence[Rule]
    searcher: CompleteSearcher | None = None

    def beams(self) -> Iterator[Beam]:
        """The beam after every step, as `decode` gives them."""
        return decode(
            self.step,
            self.state,
            bos=self.bos,
            eos=self.eos,
            strategy=self.strategy,
            limits=self.limits,
            rules=self.rules,
        )

    def whole(self, go_on: Callable[[], None] | None) -> list[list[Hypothesis]] | None:
        """What the stepper finds by itself; None where it cannot search so, or only the loop can say why it fails.

        go_on: is called after each step, and may raise.
        """
        if self.searcher is None:
            return None
        search = self.searcher.complete_search(
            self.state, bos=self.bos, eos=self.eos, strategy=self.strategy, limits=self.limits, rules=self.rules
        )
        if search is None:
            return None
        more = True
        while more:
            more = search.run(SOME if go_on is None else 1)
            if go_on is not None:
                go_on()
        return search.hypotheses()


@torch.inference_mode()
def search_pieces(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: DecodingSettings,
    stepper: Stepper | None = None,
    fusion: Fusion | None = None,
    watch: SearchObserver | None = None,
) -> list[list[Hypothesis]]:
    """For each piece its best hypotheses, best first.

    stepper: what steps instead of the checkpoint's plain model, whose vocabularies it shares.  fusion: a language model
    that ranks with it.  watch: what looks on, sentence numbers being the
    pieces' places.
    Raises SearchError for a piece that cannot be searched.
    """
    prepared = prepare(checkpoint, pieces, settings, stepper, fusion)
    go_on = watch.go_on if isinstance(watch, WhileWanted) and watch.watch is None else None
    if watch is None or go_on is not None:
        whole = prepared.whole(go_on)
        if whole is not None:
            return whole
    best = BestHypotheses(prepared.strategy, len(pieces))
    try:
        for beam in prepared.beams():
            if watch is not None:
                watch(beam)
            best.add(beam)
    except SearchError as error:
        raise explained(error, checkpoint, settings) from None
    return [best.of(number) for number in range(len(pieces))]


def prepare(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: DecodingSettings,
    stepper: Stepper | None = None,
    fusion: Fusion | None = None,
) -> Prepared:
    """What [decoding] asks of a search of pieces; see `search_pieces`."""
    steps: Stepper = stepper or checkpoint.model
    forced = checkpoint.target_tokenizer.encode(settings.prefix)
    prefixes = [forced if piece.first else [] for piece in pieces]
    specials, end = checkpoint.target_tokenizer.specials, checkpoint.source_tokenizer.specials
    device = next(checkpoint.model.parameters()).device
    source, mask = padded([[*piece.ids, end.eos] for piece in pieces], end.pad, device)
    longest = checkpoint.config.model.max_positions
    costs = [cost_of(piece.constraints, checkpoint.target_tokenizer) for piece in pieces]
    limits = torch.tensor(
        [
            limit_of(len(piece.ids), len(prefix), settings, longest, cost)
            for piece, prefix, cost in zip(pieces, prefixes, costs, strict=True)
        ],
        device=device,
    )
    strategy = strategy_from(settings, keys_of(pieces).to(device))
    if any(costs):
        wanted, width = [piece.constraints for piece in pieces], width_of(max(costs), settings)
        strategy = constrained_beam(strategy, wanted, checkpoint.target_tokenizer, limits, width)
    step: Step[Any] = steps.step
    plain = step
    state = _started(steps, source, mask, attentive=strategy.coverage is not None)
    step = reshaped(step, temperature=temperature_of(checkpoint, settings), unsmooth=settings.unsmooth)
    if fusion is not None:
        step, state = fusion.over(step), fusion.start(state, len(pieces))
    return Prepared(
        step=step,
        state=state,
        bos=specials.bos,
        eos=specials.eos,
        strategy=strategy,
        limits=limits,
        rules=rules_for(checkpoint, prefixes, settings),
        searcher=steps if step is plain and isinstance(steps, CompleteSearcher) else None,
    )


def forbidding(checkpoint: Checkpoint, piece: Piece, settings: DecodingSettings, ids: Sequence[int]) -> str | None:
    """The name of a rule that forbids `ids` right after the prefix of a piece; None where none does."""
    tokenizer = checkpoint.target_tokenizer
    begin = tokenizer.encode(settings.prefix) if piece.first else []
    limit = limit_of(len(piece.ids), len(begin), settings, checkpoint.config.model.max_positions, len(ids))
    for rule in rules_for(checkpoint, [begin], settings):
        for place, each in enumerate(ids):
            prefix = torch.tensor([[tokenizer.specials.bos, *begin, *ids[:place]]])
            context = RuleContext(
                eos=tokenizer.specials.eos,
                size=len(tokenizer),
                step=prefix.size(1) - 1,
                sentences=torch.tensor([0]),
                limits=torch.tensor([limit]),
            )
            bias = rule(prefix, context)
            if bias is not None and bool(bias.of(torch.tensor([[each]])).isneginf()):
                return type(rule).__name__
    return None


def temperature_of(checkpoint: Checkpoint, settings: DecodingSettings) -> float:
    """The temperature that beliefs are ranked at; 1 for the model's own."""
    return checkpoint.temperature.value if settings.calibrated and checkpoint.temperature else 1.0


def _started(steps: Stepper, source: Tensor, mask: Tensor, *, attentive: bool) -> Any:
    """The first state; whoever needs no attention pays for none."""
    if not attentive:
        return steps.start(source, mask)
    if not isinstance(steps, AttentionStepper):
        raise ValueError(f"attention is asked for, and {type(steps).__name__} offers none")
    return steps.start_with_attention(source, mask)


def limit_of(length: int, prefix: int, settings: DecodingSettings, longest: int, cost: int = 0) -> int:
    """Most target tokens, end mark counted, for a source of `length` tokens, its end mark not counted.

    prefix: how many tokens of the target are given.  longest: the most that the model can count to.  cost: how many
    tokens its constraints take, which the ratio gives way to.
    """
    limit = max(int(settings.max_length_ratio * length) + settings.max_length_extra, cost + 1) + prefix
    if settings.max_length:
        limit = min(limit, settings.max_length)
    return min(limit, longest)


def keys_of(pieces: Sequence[Piece]) -> Tensor:
    """[B], a number for each piece that its ids alone decide: what is drawn for a text does not depend on its place."""
    return torch.tensor([_key(piece.ids) for piece in pieces], dtype=torch.long)


def _key(ids: Sequence[int]) -> int:
    """FNV-1a over ids, in 63 bits."""
    key = 0xCBF29CE484222325
    for each in ids:
        key = ((key ^ (each + 1)) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return key >> 1


def rules_for(checkpoint: Checkpoint, prefixes: Sequence[Sequence[int]], settings: DecodingSettings) -> list[Rule]:
    """What [decoding] forbids, forces and penalises.

    prefixes: `decoding.prefix` as ids, or none, for each piece; a search may spell the text with other tokens.
    """
    return rules_of(checkpoint.target_tokenizer, [bool(prefix) for prefix in prefixes], settings)
