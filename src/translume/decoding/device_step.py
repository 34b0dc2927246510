"""One step of many searches on a device, in fixed shapes and without reading anything back to the host.

It computes what `Search` of the decoding loop does with greedy search, beam search and sampling, for B slots with K
hypotheses each. A slot holds a sentence, which has its own place in its target; other sentences take its place when it
is done. Every operation here can be captured in a CUDA graph: no value reaches the host, and no shape, index or copy
depends on one. Python's numbers are only given to operations that take them as arguments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from translume.belief import drawn_from, log_weights
from translume.decoding.beam_search import BeamSearch, Greedy
from translume.decoding.rules import ForbidFirst, ForbidTokens, MinimumLength, NoRepeatNgram, OnlyTokens, Rule
from translume.decoding.rules import RepetitionPenalty as Repetition
from translume.decoding.sampling import Sampling, Truncation, counted, epsilon, eta, min_p, seeded, uniform_of
from translume.decoding.scoring import LengthPenalty
from translume.decoding.strategy import Strategy
from translume.lazy import Tensor, torch

BLOCK = 64
"""Columns of a block of `best_of_rows`, which sorts only some blocks of a row."""


class UnsupportedSearchError(ValueError):
    """A search that only the decoding loop runs. The message says why."""


class FixedShapeDecoder(Protocol):
    """A model's decoder and head with caches of fixed shapes; see `model.fixed_decoder.FixedDecoder`."""

    @property
    def dtype(self) -> "torch.dtype": ...
    def logits(self, tokens: Tensor, places: Tensor, rows: Tensor, ancestors: Tensor, reach: int) -> Tensor: ...
    def reorder(self, origin: Tensor) -> None: ...
    def enter(self, slots: Tensor, state: Any, rows: slice, prompts: Tensor) -> None: ...
    def clear(self, slots: Tensor) -> None: ...
    def copy_from(self, smaller: Self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """A search that the device supports. Sentences of searches with equal settings can share their steps.

    width: K.  nbest: hypotheses that are kept.  patience: finished hypotheses that end a sentence; 0: it ends when no
    live hypothesis can improve on them.  prompt: tokens P before the first one that is chosen, BOS among them.
    forbidden, forbidden_first: ids that are never generated, and those that do not begin a target.
    minimum: tokens before EOS.  ngram: length of n-grams that are not repeated, or 0.  repetition: divisor of the
    probability of repeated tokens.  temperature, truncation: of sampling; None for other strategies.
    """

    width: int
    nbest: int
    patience: float
    penalty: LengthPenalty
    eos: int
    prompt: int
    forbidden: tuple[int, ...] = ()
    forbidden_first: tuple[int, ...] = ()
    minimum: int = 0
    ngram: int = 0
    repetition: float = 1.0
    temperature: float = 1.0
    truncation: Truncation | None = None

    @classmethod
    def from_strategy(
        cls, strategy: Strategy, rules: Sequence[Rule], *, eos: int, prompt: int, vocabulary: int
    ) -> Self:
        """Return the settings of a search. Raises UnsupportedSearchError if the device does not support it."""
        if strategy.coverage is not None:
            raise UnsupportedSearchError("decoding.coverage_penalty")
        if type(strategy) is Greedy:
            patience = 1.0
        elif type(strategy) is BeamSearch and strategy.width > 1:
            patience = strategy.patience * strategy.width if strategy.stop == "first" else 0.0
        elif type(strategy) is Sampling:
            patience = float(strategy.width)
        else:
            raise UnsupportedSearchError(f"the strategy {type(strategy).__name__}")
        sampling = strategy if isinstance(strategy, Sampling) else None
        return cls(
            width=strategy.width,
            nbest=strategy.nbest,
            patience=patience,
            penalty=strategy.length_penalty,
            eos=eos,
            prompt=prompt,
            temperature=1.0 if sampling is None else sampling.temperature,
            truncation=None if sampling is None else sampling.truncation,
            **_rule_settings(rules, eos, vocabulary),
        )

    @property
    def candidates(self) -> int:
        """Continuations of a sentence that are ranked in a step."""
        return 1 if self.width == 1 else self.width if self.truncation else 2 * self.width


def _rule_settings(rules: Sequence[Rule], eos: int, vocabulary: int) -> dict[str, Any]:
    """Return the fields of `StepSettings` that rules set."""
    forbidden, fields = set[int](), dict[str, Any]()

    def once(name: str, value: object) -> None:
        if name in fields:
            raise UnsupportedSearchError(f"two rules {type(rule).__name__}")
        fields[name] = value

    for rule in rules:
        if isinstance(rule, ForbidTokens):
            forbidden |= set(rule.ids)
        elif isinstance(rule, OnlyTokens):
            forbidden |= set(range(vocabulary)).difference(rule.ids, (eos,))
        elif isinstance(rule, MinimumLength):
            fields["minimum"] = max(fields.get("minimum", 0), rule.tokens)
        elif isinstance(rule, ForbidFirst):
            once("forbidden_first", rule.ids)
        elif isinstance(rule, NoRepeatNgram):
            once("ngram", rule.order)
        elif isinstance(rule, Repetition) and rule.factor >= 1.0:  # others may raise a total, which `stop` must know
            once("repetition", rule.factor)
        else:
            raise UnsupportedSearchError(f"the rule {type(rule).__name__}")
    if eos in forbidden:
        raise UnsupportedSearchError("a rule that forbids EOS")
    return {**fields, "forbidden": tuple(sorted(forbidden))}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Continuations of each sentence, [B, W]: tokens, the hypotheses they continue, totals and sums of log p_model."""

    token: Tensor
    origin: Tensor
    total: Tensor
    sum: Tensor

    def first(self, count: int) -> "_Chosen":
        return _Chosen(*(each[:, :count] for each in (self.token, self.origin, self.total, self.sum)))


class SlotBeams:
    """The live and the finished hypotheses of B slots, K and M of each, as tensors that a step changes in place.

    A slot without a sentence, or with one that is done, is at place T, and changes no finished hypotheses.

    tokens: [B, K], read next.  places: [B], of these in the target, which begins with the prompt.
    ancestors: [B, K, T + 1]: the hypothesis of the sentence, 0 … K−1, that read the token at each place before the
    next one; −1 at later places.
    read_tokens, read_sums: [B·(T + 1)·K], the token that each hypothesis read at each place, and Σ log p_model then.
    totals, sums: [B, K], of the live hypotheses, with and without the biases of rules; −inf marks an empty place.
    done, failed: [B], whether a sentence is done, and whether it had a NaN.
    finished_sums: [B, M, 3], scores, totals and Σ log p_model of the best finished ones; −inf marks an empty place.
    finished_numbers: [B, M, 2], their last tokens, and their lengths, negative if the limit ended them; 0: empty.
    finished_paths: [B, M, T + 1], the ancestors of the hypotheses that these tokens continue.
    """

    def __init__(
        self, settings: StepSettings, decoder: FixedShapeDecoder, slots: int, target: int, device: "torch.device"
    ) -> None:
        """slots: B.  target: T, at least prompt and limit of each sentence less one."""
        self.settings, self.decoder, self.slots, self.target = settings, decoder, slots, target
        width, kept = settings.width, settings.nbest

        def full(value: float, *shape: int, dtype: "torch.dtype" = torch.long) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        number = torch.promote_types(decoder.dtype, torch.float32)
        self.tokens = full(settings.eos, slots, width)
        self.places = full(target, slots)
        self.ancestors = full(0, slots, width, target + 1)
        self.read_tokens = full(settings.eos, slots * (target + 1) * width)
        self.read_sums = full(0.0, slots * (target + 1) * width, dtype=number)
        self.totals = full(0.0, slots, width, dtype=number)
        self._biased = settings.repetition != 1.0  # whether totals and sums are different numbers
        self.sums = full(0.0, slots, width, dtype=number) if self._biased else self.totals
        self.limits, self.limit_divisors = full(1, slots), full(1.0, slots, dtype=torch.float32)
        self.done, self.failed = full(1, slots, dtype=torch.bool), full(0, slots, dtype=torch.bool)
        self.ended = full(0, slots)
        self.finished_sums = full(-math.inf, slots, kept, 3, dtype=number)
        self.finished_numbers = full(0, slots, kept, 2)
        self.finished_paths = full(0, slots, kept, target + 1)
        self.draws = full(0, slots, width)
        # Constants of a step.
        self._own = torch.arange(width, device=device)
        self._first_rows = torch.arange(slots, device=device)[:, None] * (target + 1) * width + self._own
        self._kept = torch.arange(kept, device=device).expand(slots, kept)
        self._signs = torch.tensor([*[1] * width, *[-1] * width], device=device)
        lengths = map(float, range(1, target + 4))
        self._divisors = torch.tensor([1.0, *map(settings.penalty.divisor, lengths)], dtype=number, device=device)
        self._forbidden = torch.tensor(settings.forbidden, dtype=torch.long, device=device)
        self._forbidden_first = torch.tensor(settings.forbidden_first, dtype=torch.long, device=device)
        self._no_length = full(0.0, 1, dtype=number)

    def enter(
        self, slots: Tensor, state: Any, rows: slice, prompts: Tensor, limits: Tensor, draws: Tensor | None
    ) -> None:
        """Put sentences in `slots` [n], int64: those at `rows` of a state before its first token.

        prompts: [n, P].  limits: [n].  draws: [n, K], the states of random numbers after keys and places.
        """
        settings, width = self.settings, self.settings.width
        self.decoder.enter(slots, state, rows, prompts)
        self.tokens.index_copy_(0, slots, prompts[:, -1:].expand(-1, width))
        self.places.index_fill_(0, slots, settings.prompt - 1)
        self.ancestors.index_fill_(0, slots, -1)
        self.ancestors[:, :, : settings.prompt - 1].index_fill_(0, slots, 0)
        self.totals.index_fill_(0, slots, 0.0)
        if settings.truncation is None:  # one hypothesis begins; with sampling, K equal ones do
            self.totals[:, 1:].index_fill_(0, slots, -math.inf)
        if self._biased:
            self.sums.index_fill_(0, slots, 0.0)
        self.limits.index_copy_(0, slots, limits)
        self.limit_divisors.index_copy_(0, slots, settings.penalty.divisor(limits.float()))
        self.ended.index_fill_(0, slots, 0)
        self.finished_sums.index_fill_(0, slots, -math.inf)
        self.finished_numbers.index_fill_(0, slots, 0)
        self.failed.index_fill_(0, slots, False)
        self.done.index_fill_(0, slots, False)
        if draws is not None:
            self.draws.index_copy_(0, slots, draws)

    def remove(self, slots: Tensor) -> None:
        """Take the sentences out of `slots` [n]."""
        self.done.index_fill_(0, slots, True)
        self.places.index_fill_(0, slots, self.target)

    def step(self, reach: int) -> None:
        """Choose the next token of every live hypothesis.  reach: above the places of all sentences that are live."""
        settings, width = self.settings, self.settings.width
        rows = torch.add(self._first_rows, self.places[:, None], alpha=width).flatten()
        own = self._own[None, :, None].expand(self.slots, -1, 1)
        self.ancestors.scatter_(2, self.places[:, None, None].expand_as(own), own)
        self.read_tokens.index_copy_(0, rows, self.tokens.flatten())
        self.read_sums.index_copy_(0, rows, self.sums.flatten())
        logits = self.decoder.logits(self.tokens, self.places, rows, self.ancestors, reach)
        scores = logits.log_softmax(-1, dtype=self.totals.dtype)
        lengths = self.places - (settings.prompt - 1)  # tokens chosen so far
        unbiased = scores.clone() if self._biased else scores
        self._apply_rules(scores, lengths, reach)
        chosen = self._drawn(scores, unbiased, lengths) if settings.truncation else self._best(scores, unbiased)
        self._advance(chosen, lengths + 1, reach)

    def _apply_rules(self, scores: Tensor, lengths: Tensor, reach: int) -> None:
        """Add the biases of the rules to log-probabilities [B·K, V], in place.  lengths: [B], tokens so far."""
        settings = self.settings
        by_sentence = scores.view(self.slots, settings.width, -1)
        if settings.ngram or settings.repetition != 1.0:
            self._apply_repetition(scores, lengths, reach)
        if settings.forbidden:
            scores.index_fill_(1, self._forbidden, -math.inf)
        if settings.forbidden_first:
            first = self._no_length.masked_fill(lengths == 0, -math.inf)[:, None, None]
            biases = first.expand(-1, settings.width, len(settings.forbidden_first))
            scores.index_add_(1, self._forbidden_first, biases.flatten(0, 1))
        if settings.minimum:
            by_sentence[..., settings.eos].masked_fill_((lengths < settings.minimum)[:, None], -math.inf)

    def _apply_repetition(self, scores: Tensor, lengths: Tensor, reach: int) -> None:
        """Forbid n-grams that a hypothesis has, and lower the tokens that it has."""
        settings, width, begin = self.settings, self.settings.width, self.settings.prompt
        read = self.read_tokens.view(self.slots, -1, width)[:, begin:reach]
        paths = self.ancestors[:, :, begin:reach].mT.clamp(min=0)
        tokens = read.gather(2, paths).mT.flatten(0, 1)  # [B·K, T' − P], of which `lengths` are the hypothesis's own
        places = torch.arange(reach - begin, device=tokens.device)
        lengths = lengths[:, None].expand(-1, width).reshape(-1, 1)
        if settings.repetition != 1.0:
            lowered = scores.gather(1, tokens) - math.log(settings.repetition)
            scores.scatter_reduce_(1, tokens, lowered.masked_fill_(places >= lengths, math.inf), "amin")
        if 0 < (before := settings.ngram - 1) + 1 <= reach - begin:
            grams = tokens.unfold(1, settings.ngram, 1)  # [B·K, T' − P − n + 1, n]
            last = lengths - before + torch.arange(before, device=tokens.device)
            last = tokens.gather(1, last.clamp(min=0, max=reach - begin - 1))
            ends = places[before:]
            repeated = (grams[..., :before] == last[:, None]).all(-1) & (ends < lengths) & (lengths >= settings.ngram)
            biases = torch.full_like(repeated, math.inf, dtype=scores.dtype).masked_fill_(repeated, -math.inf)
            scores.scatter_reduce_(1, grams[..., before], biases, "amin")

    def _best(self, scores: Tensor, unbiased: Tensor) -> _Chosen:
        """Return the best continuations, best first, by total, then hypothesis, then log-probability, then id."""
        width, count = self.settings.width, min(self.settings.candidates, scores.size(1))
        values, ids = best_of_rows(scores, count)
        shape = (self.slots, width, count)
        totals = sums = (self.totals[..., None] + values.view(shape)).flatten(1)
        if self._biased:
            sums = (self.sums[..., None] + unbiased.gather(1, ids).view(shape)).flatten(1)
        ids = ids.reshape(self.slots, width * count)
        if width == 1:
            return _Chosen(ids, self._own.expand(self.slots, 1), totals, sums)
        totals, places = totals.sort(dim=1, descending=True, stable=True)
        totals, places = (each[:, : self.settings.candidates] for each in (totals, places))
        return _Chosen(
            token=ids.gather(1, places),
            origin=torch.div(places, count, rounding_mode="floor"),
            total=totals,
            sum=sums.gather(1, places) if self._biased else totals,
        )

    def _drawn(self, scores: Tensor, unbiased: Tensor, lengths: Tensor) -> _Chosen:
        """Return one drawn continuation of each sample."""
        truncation = self.settings.truncation
        assert truncation is not None
        chances = uniform_of(counted(self.draws, lengths[:, None])).view(-1, 1)
        weights, ids = truncated(scores, truncation, self.settings.temperature)
        possible = ~weights.amax(-1, keepdim=True).isneginf()
        places = drawn_from(weights.masked_fill_(~possible, 0.0), chances).clamp_(max=weights.size(1) - 1)  # for NaN
        token = places if ids is None else ids.gather(1, places)
        total = summed = self.totals + scores.gather(1, token).masked_fill_(~possible, -math.inf).view_as(self.totals)
        if self._biased:
            summed = self.sums + unbiased.gather(1, token).view_as(self.sums)
        return _Chosen(token.view_as(self.tokens), self._own.expand_as(self.tokens), total, summed)

    def _advance(self, chosen: _Chosen, lengths: Tensor, reach: int) -> None:
        """Keep what has finished, and make the next beams.  lengths: [B], of the hypotheses with the chosen tokens."""
        settings, width = self.settings, self.settings.width
        active = ~self.done
        ends = (chosen.token == settings.eos) & (chosen.total > -math.inf)
        going = self._going(chosen, ends)
        last = lengths == self.limits
        stop = last[:, None] & (going.total > -math.inf)
        self._keep(chosen.first(width), going, torch.cat([ends[:, :width], stop], 1) & active[:, None], lengths, reach)
        sampled = settings.truncation is not None
        best = going.total.amax(1) if sampled else going.total[:, 0]
        over = last | best.isneginf()
        if settings.patience:
            over |= self.ended >= settings.patience
        else:
            bound = (best / self._divisors[lengths + 1]).maximum(best / self.limit_divisors)
            over |= bound <= self.finished_sums[:, -1, 0]
        broken = chosen.total.isnan().any(1) if sampled else chosen.total[:, 0].isnan()  # a NaN is sorted first
        self.failed |= broken & active
        self.done |= over | broken
        self.tokens.copy_(going.token)
        self.totals.copy_(going.total)
        if self._biased:
            self.sums.copy_(going.sum)
        if width > 1:
            paths = self.ancestors[:, :, :reach]
            paths.copy_(paths.gather(1, going.origin[..., None].expand_as(paths)))
            self.decoder.reorder(going.origin)
        self.places.add_(1).masked_fill_(self.done, self.target)

    def _going(self, chosen: _Chosen, ends: Tensor) -> _Chosen:
        """Return the first K that do not end; with fewer, the others have a total of −inf."""
        width = self.settings.width
        total = chosen.total.masked_fill(ends, -math.inf)
        if width == 1:
            return _Chosen(chosen.token, chosen.origin, total, chosen.sum if self._biased else total)
        if self.settings.truncation is None:
            total, order = total.sort(dim=1, descending=True, stable=True)  # they are sorted but for those that end
            total, order = total[:, :width], order[:, :width]
        else:
            order = ends.byte().sort(dim=1, stable=True).indices
            total = total.gather(1, order)
        summed = chosen.sum.gather(1, order) if self._biased else total
        return _Chosen(chosen.token.gather(1, order), chosen.origin.gather(1, order), total, summed)

    def _keep(self, first: _Chosen, going: _Chosen, ending: Tensor, lengths: Tensor, reach: int) -> None:
        """Keep the best of the finished hypotheses and of those that finish now, the earlier first if equal.

        ending: [B, 2K], which of `first` end with EOS, then which of `going` end at the limit.
        """
        kept = self.settings.nbest
        total = torch.cat([first.total, going.total], 1)
        summed = torch.cat([first.sum, going.sum], 1) if self._biased else total
        score = (total / self._divisors[lengths][:, None]).masked_fill_(~ending, -math.inf)
        sums = torch.cat([self.finished_sums, torch.stack([score, total, summed], 2)], 1)
        order = sums[..., 0].sort(dim=1, descending=True, stable=True).indices[:, :kept]
        places = order[..., None]
        torch.gather(sums, 1, places.expand(-1, -1, 3), out=self.finished_sums)
        token = torch.cat([first.token, going.token], 1)
        numbers = torch.cat([self.finished_numbers, torch.stack([token, lengths[:, None] * self._signs], 2)], 1)
        torch.gather(numbers, 1, places.expand(-1, -1, 2), out=self.finished_numbers)
        parents = torch.cat([self._kept, first.origin + kept, going.origin + kept], 1).gather(1, order)
        paths = torch.cat([self.finished_paths[..., :reach], self.ancestors[..., :reach]], 1)
        self.finished_paths[..., :reach].copy_(paths.gather(1, parents[..., None].expand(-1, -1, reach)))
        if self.settings.patience:
            self.ended += ending.sum(1)

    def results(self, slots: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Return the finished hypotheses in `slots` [n] as floats [n, M, 3 + T'] and integers [n, M, 2 + T'].

        floats: scores, totals and Σ log p_model; then Σ log p_model after the token that was read at each place.
        integers: last tokens and lengths, as `finished_numbers`; then these tokens.
        reach: T'.
        """
        tokens, sums = self._read(slots, self.finished_paths[..., :reach][slots], reach)
        numbers = torch.cat([self.finished_numbers[slots], tokens], 2).int()
        return torch.cat([self.finished_sums[slots], sums], 2), numbers

    def live_tokens(self, slots: Tensor, reach: int) -> Tensor:
        """Return the live hypotheses in `slots` [n] as integers [n, K, 1 + T' + 1], T' = reach, for one copy.

        1, or 0 for an empty place and for a sentence that is done; the tokens read at each place, and the next one.
        """
        live = (self.totals[slots] > -math.inf) & ~self.done[slots][:, None]
        tokens, _ = self._read(slots, self.ancestors[..., :reach][slots], reach)
        return torch.cat([live[..., None], tokens, self.tokens[slots][..., None]], 2).int()

    def _read(self, slots: Tensor, paths: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Return the tokens, and sums, [n, m, T'] that `paths` [n, m, T'] name."""
        shape = (self.slots, -1, self.settings.width)
        places = paths.clamp(min=0).mT
        tokens = self.read_tokens.view(shape)[:, :reach][slots].gather(2, places).mT
        return tokens, self.read_sums.view(shape)[:, :reach][slots].gather(2, places).mT

    def copy_from(self, smaller: "SlotBeams") -> None:
        """Take over all sentences of slots with the same settings, if there are more slots and longer targets here."""
        slots, target, width = smaller.slots, smaller.target, self.settings.width
        for name in ("tokens", "totals", "sums", "limits", "limit_divisors", "done", "failed", "ended", "draws"):
            getattr(self, name)[:slots].copy_(getattr(smaller, name))
        for name in ("finished_sums", "finished_numbers"):
            getattr(self, name)[:slots].copy_(getattr(smaller, name))
        self.ancestors[:slots].fill_(-1)
        for name in ("ancestors", "finished_paths"):
            getattr(self, name)[:slots, :, :target].copy_(getattr(smaller, name)[..., :-1])
        for name in ("read_tokens", "read_sums"):
            own = getattr(self, name).view(self.slots, -1, width)
            own[:slots, :target].copy_(getattr(smaller, name).view(slots, -1, width)[:, :-1])
        self.places[:slots].copy_(smaller.places).masked_fill_(smaller.done, self.target)
        self.decoder.copy_from(smaller.decoder)


def draw_states(strategy: Strategy, device: "torch.device") -> Tensor | None:
    """Return the states [B, K] of a sampling's random numbers after keys and places; None for other strategies."""
    if not isinstance(strategy, Sampling):
        return None
    keys = counted(seeded(strategy.seed).to(device), torch.as_tensor(strategy.keys, device=device)[:, None])
    return counted(keys, torch.arange(strategy.width, device=device))


def best_of_rows(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest of scores [N, V] and their ids, [N, count] each, largest first, ties by smaller id.

    As `exact_topk`, without reading back whether there are ties. A NaN comes first.
    """
    size = scores.size(1)
    if count == 1:
        values, ids = scores.max(-1, keepdim=True)  # the first of equal ones
        return values, ids
    whole, rest = divmod(size, BLOCK)
    if size <= 2 * count * BLOCK:
        values, ids = scores.sort(dim=1, descending=True, stable=True)
        return values[:, :count], ids[:, :count]
    largest = scores[:, : whole * BLOCK].view(len(scores), whole, BLOCK).amax(2)
    if rest:
        largest = torch.cat([largest, scores[:, whole * BLOCK :].amax(1, keepdim=True)], 1)
    # The best are in the first `count` blocks by maximum, for the maxima of these rank before all of any other block.
    blocks = largest.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
    ids = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    missing = ids >= size if rest else None
    ids = ids if missing is None else ids.clamp(max=size - 1)
    values = scores.gather(1, ids)
    values = values if missing is None else values.masked_fill_(missing, -math.inf)
    values, order = values.sort(dim=1, descending=True, stable=True)
    return values[:, :count], ids.gather(1, order[:, :count])


def truncated(scores: Tensor, truncation: Truncation, temperature: float) -> tuple[Tensor, Tensor | None]:
    """Return the `log_weights` [N, m] of tokens that can be drawn, −inf for others, and their ids; None: 0 … V−1.

    scores: [N, V], log-probabilities with biases. As `Sampling.draw`, without reading anything back.
    """
    if truncation.only_best:
        values, ids = best_of_rows(scores, min(truncation.top_k, scores.size(1)))
        ids, by_id = ids.sort(dim=1)
        weights = log_weights(values.gather(1, by_id), temperature)
        return _without(weights, min_p(weights, truncation.min_p) if truncation.min_p else None), ids
    weights = log_weights(scores, temperature)
    kept = _most_likely(weights, truncation) if truncation.top_k or truncation.top_p < 1.0 else None
    for part, parameter in ((min_p, truncation.min_p), (epsilon, truncation.epsilon), (eta, truncation.eta)):
        if parameter:
            kept_by_part = part(weights, parameter)
            kept = kept_by_part if kept is None else kept & kept_by_part
    return _without(weights, kept), None


def _without(weights: Tensor, kept: Tensor | None) -> Tensor:
    return weights if kept is None else weights.masked_fill_(~kept, -math.inf)


def _most_likely(weights: Tensor, truncation: Truncation) -> Tensor:
    """Return [N, V], True for the tokens that `top_k` and `top_p` keep, of `log_weights` [N, V]."""
    ordered, ids = weights.sort(dim=1, descending=True, stable=True)
    inside = torch.ones_like(weights, dtype=torch.bool)
    if truncation.top_p < 1.0:
        summed = ordered.exp().cumsum(1)
        inside[:, 1:] = summed[:, :-1] < truncation.top_p * weights.exp().sum(1, keepdim=True)
    if truncation.top_k:
        inside[:, truncation.top_k :] = False
    return torch.zeros_like(inside).scatter_(1, ids, inside)
