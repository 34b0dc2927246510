"""Phrases that a target must hold: from texts to tokens, and to the beam search that sees to it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from translume.config import DecodingSettings
from translume.decoding import BeamSearch, Boundaries, ConstrainedBeam, Constraints, Greedy, Phrase, Strategy
from translume.errors import SettingsError
from translume.text import Tokenizer
from translume.translator.rules import word_character

STRATEGIES = ("beam", "greedy")
"""Those that can be constrained."""
_SPACED = ("character", "byte")
"""Kinds of tokenizers whose spaces are tokens of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a target must hold: any of `texts`, as words; `phrases` are their tokens.

    As the target's tokenizer normalises them, words parted by one space.
    """

    texts: tuple[str, ...]
    phrases: tuple[Phrase, ...]

    @property
    def name(self) -> str:
        """What warnings call it."""
        return " or ".join(map(repr, self.texts))

    def met_by(self, text: str, times: int) -> bool:
        """Whether a target holds one of its texts so many times, not overlapping."""
        return any(occurrences(each, text) >= times for each in self.texts)


def constraint_of(texts: Sequence[str], tokenizer: Tokenizer) -> Constraint | None:
    """The constraint that any of `texts` meets; None where the target's tokenizer can write none of them."""
    normalised = dict.fromkeys(" ".join(tokenizer.normalise(text).split()) for text in texts)
    written = [text for text in normalised if text and tokenizer.decode(tokenizer.encode(text)) == text]
    unknown = tokenizer.specials.unk
    written = [text for text in written if unknown is None or unknown not in tokenizer.encode(text)]
    if not written:
        return None
    return Constraint(texts=tuple(written), phrases=tuple(phrase_of(text, tokenizer) for text in written))


def phrase_of(text: str, tokenizer: Tokenizer) -> Phrase:
    """The tokens of a text that words do not go on before or after: "mann" is not said by "mannschaft"."""
    apart = boundaries(tokenizer).space is not None or tokenizer.settings.kind not in _SPACED
    return Phrase(
        tuple(tokenizer.encode(text)),
        apart_before=apart and word_character(text[0]),
        apart_after=apart and word_character(text[-1]),
    )


@lru_cache(maxsize=8)
def boundaries(tokenizer: Tokenizer) -> Boundaries:
    """Where words part, by token; a byte of a longer character may be part of a word."""
    spellings, specials = tokenizer.spellings, tokenizer.specials
    silent = {specials.pad, specials.bos, specials.eos}
    begins = [id_ in silent or _parts(each, 0) for id_, each in enumerate(spellings)]
    ends = [id_ in silent or _parts(each, -1) for id_, each in enumerate(spellings)]
    space = None
    if tokenizer.settings.kind in _SPACED:
        space = spellings.index(b" ") if b" " in spellings else None
    if specials.unk is not None:
        begins[specials.unk], ends[specials.unk] = spellings[specials.unk].startswith(b" "), False
    return Boundaries(begins=torch.tensor(begins), ends=torch.tensor(ends), space=space)


def _parts(spelling: bytes, place: int) -> bool:
    """Whether a token's first or last character is no part of a word."""
    try:
        return not word_character(spelling.decode()[place])
    except UnicodeDecodeError:
        # Bytes of Han characters begin with these; of the others nobody knows.
        return place == 0 and 0xE4 <= spelling[0] <= 0xE9


def occurrences(phrase: str, text: str) -> int:
    """How often a text holds a phrase as words, not overlapping."""
    count = start = 0
    while (found := text.find(phrase, start)) >= 0:
        end = found + len(phrase)
        goes_on = (found and word_character(text[found - 1]) and word_character(phrase[0])) or (
            end < len(text) and word_character(text[end]) and word_character(phrase[-1])
        )
        count, start = (count, found + 1) if goes_on else (count + 1, end)
    return count


def cost_of(constraints: Sequence[Constraint], tokenizer: Tokenizer) -> int:
    """How many tokens are enough to meet them all."""
    if not constraints:
        return 0
    begins = boundaries(tokenizer).begins
    return sum(
        min(len(each.ids) + (each.apart_before and not bool(begins[each.ids[0]])) for each in constraint.phrases)
        for constraint in constraints
    )


def width_of(cost: int, settings: DecodingSettings) -> int:
    """Hypotheses for a sentence whose constraints cost so many tokens: the beam's, doubled until each bank has a place.

    It depends on the sentence alone, so its neighbours change nothing.
    """
    width = 1 if settings.strategy == "greedy" else settings.beam
    while cost and width <= cost:
        width *= 2
    return width


def constrained_beam(
    strategy: Strategy, wanted: Sequence[Sequence[Constraint]], tokenizer: Tokenizer, limits: Tensor, width: int
) -> ConstrainedBeam:
    """The search of `strategy`, a beam or greedy, for targets that hold what is `wanted` of each sentence."""
    if isinstance(strategy, Greedy):
        beam = BeamSearch(width=width, length_penalty=strategy.length_penalty, coverage=strategy.coverage)
    elif isinstance(strategy, BeamSearch):
        beam = replace(strategy, width=width, patience=strategy.patience * strategy.width / width)
    else:
        raise SettingsError(_refusal(type(strategy).__name__))
    apart = boundaries(tokenizer)
    apart = Boundaries(begins=apart.begins.to(limits.device), ends=apart.ends.to(limits.device), space=apart.space)
    constraints = Constraints.of([[each.phrases for each in every] for every in wanted], apart)
    return ConstrainedBeam(beam=beam, constraints=constraints, limits=limits, eos=tokenizer.specials.eos)


def refuse_unfit(settings: DecodingSettings) -> None:
    """SettingsError where the strategy of [decoding] takes no constraints."""
    if settings.strategy not in STRATEGIES:
        raise SettingsError(_refusal(settings.strategy))


def _refusal(name: str) -> str:
    wanted = " or ".join(f"'{each}'" for each in STRATEGIES)
    return f"decoding.strategy: found '{name}' with constraints, wanted {wanted}"


def unmet_by(text: str, constraints: Sequence[Constraint]) -> list[Constraint]:
    """Those that a target does not hold, each as often as it stands there."""
    return [each for each, times in Counter(constraints).items() if not each.met_by(text, times)]
