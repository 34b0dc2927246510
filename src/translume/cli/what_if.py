"""`translume inspect MODEL TEXT --why-not TEXT --force STEP=TEXT --edit TEXT`: answers instead of a trace."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.cli.options import Command, changed
from translume.errors import SettingsError

if TYPE_CHECKING:
    from rich.text import Text

    from translume.inspection import Edited, Forced, WhyNot
    from translume.translator import Translator

_ASKED = "translume.what_if"
NAMES = "--why-not, --force and --edit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked of one text. force: steps, counted from 0, and what to say there."""

    why_not: tuple[str, ...] = ()
    force: tuple[tuple[int, str], ...] = ()
    edit: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is asked."""
        return bool(self.why_not or self.force or self.edit)


def _remember(ctx: click.Context, parameter: click.Parameter, value: tuple[Any, ...]) -> None:
    ctx.meta.setdefault(_ASKED, {})[parameter.name] = value


def _remember_forced(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    pairs = []
    for each in value:
        step, equals, text = each.partition("=")
        if not (equals and text and step.isascii() and step.isdigit() and len(step) <= 9):
            raise SettingsError(f"--force: found '{each}', wanted STEP=TEXT such as 3=house, steps counted from 0")
        pairs.append((int(step), text))
    _remember(ctx, parameter, tuple(pairs))


def what_if_options(command: Command) -> Command:
    """--why-not, --force and --edit, read back with `questions`."""
    why_not = click.option(
        "--why-not",
        multiple=True,
        metavar="TEXT",
        expose_value=False,
        callback=_remember,
        help="Why is this not the translation? Where the two part, and what either is worth; instead of a trace.",
    )
    force = click.option(
        "--force",
        multiple=True,
        metavar="STEP=TEXT",
        expose_value=False,
        callback=_remember_forced,
        help="Say this at a step (counted from 0) and translate on from there; instead of a trace.",
    )
    edit = click.option(
        "--edit",
        multiple=True,
        metavar="TEXT",
        expose_value=False,
        callback=_remember,
        help="What this source changes in the translation, and in the belief in its tokens; instead of a trace.",
    )
    return why_not(force(edit(command)))


def questions() -> Questions:
    """What the running verb was asked."""
    return Questions(**click.get_current_context().meta.get(_ASKED, {}))


def refuse_beside(html: Path | None, given: str | None) -> None:
    """SettingsError for an option that only a trace reads. given: a target or a reference."""
    context = click.get_current_context()
    told = [
        name
        for name in ("top", "alternatives", "attribution")
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE
    ]
    if given is not None or told or html is not None:
        raise SettingsError(
            "inspect: --target, --reference, --top, --alternatives, --attribution and --html are for a trace, "
            f"found one of {NAMES}"
        )


def answer(translator: "Translator", text: str, asked: Questions, *, as_json: bool) -> None:
    """Print what comes of each question, in the order of the options."""
    from translume.inspection import edit_source, force_token, why_not

    settings = changed(translator.config, "decoding").decoding
    why = [why_not(translator, text, each, settings=settings) for each in asked.why_not]
    forced = [force_token(translator, text, step, token, settings=settings) for step, token in asked.force]
    edited = [edit_source(translator, text, each, settings=settings) for each in asked.edit]
    if as_json:
        content = {
            "why_not": [each.to_dict() for each in why],
            "forced": [each.to_dict() for each in forced],
            "edited": [each.to_dict() for each in edited],
        }
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    said = [(each, token) for each, (_, token) in zip(forced, asked.force, strict=True)]
    for line in _lines(why, said, edited):
        console.print(line)


def _lines(why: "list[WhyNot]", forced: "list[tuple[Forced, str]]", edited: "list[Edited]") -> "Iterator[Text]":
    """All answers, an empty line between two."""
    from rich.text import Text

    from translume.drawing import edited_lines, forced_lines, why_not_lines

    answers = [*map(why_not_lines, why), *starmap(forced_lines, forced), *map(edited_lines, edited)]
    for place, each in enumerate(answers):
        if place:
            yield Text("")
        yield from each
