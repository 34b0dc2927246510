"""What a request may cost, found before any work: the target tokens that its searches may make."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request

from translume.decoding import strategy_from
from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError, field_error
from translume.serving.api.texts import in_thread
from translume.serving.server import Server
from translume.serving.settings import Limits
from translume.serving.work import Generating, LineCost, Part, Translating
from translume.translator.search import target_limit

LENGTHENING: Final = ("max_length", "max_length_extra", "max_length_ratio", "prefix")
"""Settings that make targets longer."""
WIDENING: Final = ("beam", "samples", "nbest", "strategy")
"""Settings that keep more hypotheses."""


async def accept_parts(
    server: Server,
    request: Request,
    texts: Sequence[str],
    work: Translating,
    parts: Sequence[Part],
    changed: Collection[str],
    names: Mapping[str, str] | None = None,
) -> None:
    """Charge texts that are split into parts, and what their search costs beyond the usual.

    changed: the settings that the request replaces.  names: other names of fields in the request.
    Raises RequestError if it is too much.
    """
    size = sum(len(part.text) for part in parts)
    more = await in_thread(size, lambda: characters_to_charge(work, parts, changed, server.limits, names))
    await server.accept(request, texts, more, sum(part.characters for part in parts if part.frames is not None))


def characters_to_charge(
    work: Translating,
    parts: Sequence[Part],
    changed: Collection[str],
    limits: Limits,
    names: Mapping[str, str] | None = None,
) -> int:
    """Return the number of characters to charge beyond those of the parts, as they may cost more than usual.

    A line that may make twice as many target tokens as with the model's own settings counts twice.
    Raises RequestError (413) that names the field to lower if all lines may make too many target tokens.
    """
    changed = [name for name in (*LENGTHENING, *WIDENING) if name in changed]
    if not changed and _bound(work, parts) <= limits.target_tokens:
        return 0
    costs = list(_costs(work, parts))
    total = sum(each.target_tokens for each in costs)
    if total > limits.target_tokens:
        field = _field_to_lower(work, parts, total, changed)
        factors = f"(hypotheses per sentence × longest target, for all {len(parts):,} sentences)"
        raise _too_costly((names or {}).get(field, field), f"{total:,} target tokens {factors}", limits)
    return sum(
        part.characters * (each.target_tokens - each.usual_target_tokens) // each.usual_target_tokens
        for part, each in zip(parts, costs, strict=True)
        if each.target_tokens > each.usual_target_tokens > 0
    )


def tokens_to_charge(work: Generating, prompts: Sequence[str], limits: Limits) -> int:
    """Return the maximum number of tokens that may be generated after prompts, which count like characters.

    Raises RequestError (413) that names the field to lower if they are too many.
    """
    width = strategy_from(work.settings).width
    longest = work.settings.max_length or work.generator.checkpoint.config.data.block_length
    total = len(prompts) * width * longest
    if total > limits.target_tokens:
        field = "max_length" if work.settings.max_length else "strategy"
        factors = f"({width} texts × {longest:,} tokens, for {len(prompts):,} prompts)"
        raise _too_costly(field, f"{total:,} tokens {factors}", limits)
    return total


def _too_costly(field: str, tokens: str, limits: Limits) -> RequestError:
    reason = f"the search may make {tokens}, expected at most {limits.target_tokens:,}; lower it"
    return field_error(field, reason, 413, "too_costly")


def _bound(work: Translating, parts: Sequence[Part]) -> float:
    """Return the maximum number of target tokens of texts with the model's own settings, as if bytes were tokens."""
    if any(part.constraints or part.frames is not None for part in parts):
        return math.inf
    checkpoint: Any = work.translator.checkpoint
    limits = (target_limit(checkpoint, len(part.text.encode()), 0, work.settings) for part in parts)
    return strategy_from(work.settings).width * sum(limits)


def _costs(work: Translating, parts: Sequence[Part]) -> Iterator[LineCost]:
    for part in parts:
        try:
            yield work.cost(part)
        except TranslumeError:  # reported when the line is translated
            yield LineCost(size=0, target_tokens=0, usual_target_tokens=0)


def _field_to_lower(work: Translating, parts: Sequence[Part], total: int, changed: Collection[str]) -> str:
    """Return the field of the request that adds most to its cost; that of the texts if none adds a third of it."""
    if any(part.constraints for part in parts):
        return "constraints"
    usual, field = work.translator.config.decoding, "text" if all(part.frames is None for part in parts) else "file"
    cheapest = 2 * total // 3
    for name in changed:
        other = Translating(work.translator, work.settings.model_copy(update={name: getattr(usual, name)}))
        if (without := sum(each.target_tokens for each in _costs(other, parts))) < cheapest:
            cheapest, field = without, name
    return field
