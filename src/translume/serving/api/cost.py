"""What a request to translate may cost, found before any work: the target tokens that its searches may make."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from translume.decoding import strategy_from
from translume.errors import TranslumeError
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.workers.work import Generating, LineCost, Part, Translating
from translume.translator.search import target_limit

LENGTHS: Final = ("max_length_extra", "max_length_ratio", "max_length", "prefix")
"""Settings that make targets longer."""
WIDTHS: Final = ("beam", "samples", "strategy", "nbest")
"""Settings that keep more hypotheses."""


def characters_to_charge(
    work: Translating,
    parts: Sequence[Part],
    given: Iterable[str],
    limits: Limits,
    names: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Return the number of characters to charge beyond those of the parts, as they may cost more than usual.

    A line that may make twice as many target tokens as with the model's own settings counts twice.
    given: the settings that the request replaces.  names: other names of fields in the request.
    Raises RequestError (413) that names the field to lower if all lines may make too many target tokens.
    """
    given = tuple(name for name in given if name in LENGTHS or name in WIDTHS)
    if not given and not any(part.constraints for part in parts) and _bound(work, parts) <= limits.target_tokens:
        return 0
    costs = [_cost(work, part) for part in parts]
    made = sum(each.target_tokens for each in costs)
    if made > limits.target_tokens:
        field = _field_to_lower(work, parts, costs, given)
        field = names.get(field, field)
        raise RequestError(
            413,
            f"{field}: the search may make {made:,} target tokens (hypotheses per sentence × longest target, for all "
            f"{len(parts):,} sentences), expected at most {limits.target_tokens:,}; lower it",
            code="too_costly",
            field=field,
        )
    return sum(
        part.characters * (each.target_tokens - each.usual_target_tokens) // each.usual_target_tokens
        for part, each in zip(parts, costs, strict=True)
        if each.target_tokens > each.usual_target_tokens > 0
    )


def tokens_to_charge(work: Generating, prompts: Sequence[str], limits: Limits) -> int:
    """Return the most tokens that may be generated after prompts, which count like characters.

    Raises RequestError (413) that names the field to lower if they are too many.
    """
    width = strategy_from(work.settings).width
    longest = work.settings.max_length or work.generator.checkpoint.config.data.block_length
    made = len(prompts) * width * longest
    if made > limits.target_tokens:
        field = "max_length" if work.settings.max_length else "strategy"
        raise RequestError(
            413,
            f"{field}: the search may make {made:,} tokens ({width} texts × {longest:,} tokens, "
            f"for {len(prompts):,} prompts), expected at most {limits.target_tokens:,}; lower it",
            code="too_costly",
            field=field,
        )
    return made


def _bound(work: Translating, parts: Sequence[Part]) -> int:
    """Return the most target tokens of lines with the model's own settings, as if each byte were a token."""
    checkpoint, settings = work.translator.checkpoint, work.settings
    if any(part.frames is not None for part in parts):
        return sum(_cost(work, part).target_tokens for part in parts)
    limits = (target_limit(checkpoint, len(part.text.encode()), 0, settings) for part in parts)
    return strategy_from(settings).width * sum(limits)


def _cost(work: Translating, part: Part) -> LineCost:
    try:
        return work.cost(part)
    except TranslumeError:  # reported when the line is translated
        return LineCost(size=0, target_tokens=0, usual_target_tokens=0)


def _field_to_lower(work: Translating, parts: Sequence[Part], costs: Sequence[LineCost], given: Sequence[str]) -> str:
    """Return the field of the request that adds most to its cost; "text" if none adds a third of it."""
    if any(part.constraints for part in parts):
        return "constraints"
    own = work.translator.config.decoding
    best = 2 / 3 * sum(each.target_tokens for each in costs)
    field = "text" if all(part.frames is None for part in parts) else "file"
    for name in given:
        other = Translating(work.translator, work.settings.model_copy(update={name: getattr(own, name)}))
        if (made := sum(_cost(other, part).target_tokens for part in parts)) < best:
            best, field = made, name
    return field
