"""translume inspect"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.atomic import check_writable, write_file
from translume.cli.attributing import blaming_attribution, methods_told
from translume.cli.lens import show_corpus
from translume.cli.options import (
    FILE,
    FOLDER,
    changed,
    compute,
    compute_options,
    decoding_options,
    json_option,
    overrides,
    set_option,
)
from translume.cli.terminal import Meter, note
from translume.cli.what_if import NAMES, answer, questions, refuse_beside, what_if_options
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.inspection import Forced, Trace
    from translume.translator import Translator


VIEW = "translume.inspect"
COMMANDLINE = click.core.ParameterSource.COMMANDLINE
ENTRIES, PAGE_ENTRIES = 10, 50
"""Of a list about a corpus, unless --top says otherwise."""


def _remember(ctx: click.Context, parameter: click.Parameter, value: int | str | Path | None) -> None:
    ctx.meta.setdefault(VIEW, {})[parameter.name] = value


@click.command(
    "inspect",
    short_help="What the decoder believed, token by token.",
    epilog='Example: translume inspect models/en-de "A man is riding a bicycle." --html out.html',
)
@click.argument("model", type=FOLDER)
@click.argument("text", required=False)
@click.option(
    "--corpus", type=(FILE, FILE), metavar="SOURCE TARGET", help="Look at two parallel files instead of a text."
)
@click.option(
    "--compare",
    type=FOLDER,
    metavar="OTHER_MODEL",
    expose_value=False,
    callback=_remember,
    help="With --corpus: another model, and where the two part.",
)
@click.option("--target", metavar="TEXT", help="Look at this target instead of the model's own translation.")
@click.option("--reference", metavar="TEXT", help="Was it the search that missed this target, or the model?")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    expose_value=False,
    callback=_remember,
    help="Tokens listed a step; entries of a corpus's lists, of which there are 10, or 50 on a page.",
)
@click.option(
    "--alternatives",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    metavar="N",
    expose_value=False,
    callback=_remember,
    help="Other tokens a step that the page can force, each decoded to its end; with --html.",
)
@click.option(
    "--attribution",
    metavar="METHOD",
    expose_value=False,
    callback=_remember,
    help="One more method, such as input-gradient or integrated-gradients.",
)
@click.option("--html", type=FILE, help="Write one self-contained page to this file; '-' is standard output.")
@what_if_options
@decoding_options
@json_option
@set_option
@compute_options
def command(
    model: Path,
    text: str | None,
    corpus: tuple[Path, Path] | None,
    target: str | None,
    reference: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show, for every token of the translation of TEXT, what the model believed, what else it might have said, what
    decoding made of that, and what was read of the source.

    Of a classifier: its classes, and which tokens of TEXT speak for and against each; with --corpus, two files of texts
    and their labels, how far its probabilities may be believed.
    """
    from translume.checkpoint import read_config
    from translume.tasks import task_of

    if (text is None) == (corpus is None):
        raise SettingsError("inspect: wanted one of TEXT and --corpus SOURCE TARGET")
    view = click.get_current_context().meta[VIEW]
    given = target if target is not None else reference
    _refuse_unread(corpus is not None, view, given=given)
    if questions():
        refuse_beside(html, given)
    if html is not None:
        check_writable(html)
    inspect = task_of(read_config(model)).part("inspect")
    inspect(model, text, corpus, target=target, reference=reference, html=html, as_json=as_json)


def inspect_translator(
    model: Path,
    text: str | None,
    corpus: tuple[Path, Path] | None,
    *,
    target: str | None,
    reference: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show what a translator predicted for TEXT, or for the pairs of a corpus."""
    from translume.inspection.tracing import METHODS
    from translume.translator import load_translator

    view, where = click.get_current_context().meta[VIEW], compute()
    if corpus is not None:
        counted = click.get_current_context().get_parameter_source("top") == COMMANDLINE
        count = view["top"] if counted else PAGE_ENTRIES if html else ENTRIES
        show_corpus(model, corpus, other=view["compare"], count=count, html=html, as_json=as_json)
        return
    assert text is not None
    methods_told(view["attribution"], METHODS)  # refused before the model is loaded
    translator = load_translator(model, device=where.device, dtype=where.plain_dtype, threads=where.threads)
    if asked := questions():
        answer(translator, text, asked, as_json=as_json)
    else:
        _show(translator, text, target, reference, html=html, as_json=as_json)


def _show(
    translator: "Translator", text: str, target: str | None, reference: str | None, *, html: Path | None, as_json: bool
) -> None:
    """The trace of a translation or of a given target, and the record of the search."""
    from translume.inspection import record_beam, trace
    from translume.inspection.tracing import EVERYTHING, METHODS

    view = click.get_current_context().meta[VIEW]
    settings = changed(translator.config, "decoding").decoding
    more = methods_told(view["attribution"], METHODS)
    with blaming_attribution():
        found = trace(translator, text, target, k=view["top"], settings=settings, show=(*EVERYTHING, *more))
    searched = settings.strategy in ("beam", "greedy")
    beam = record_beam(translator, text, reference=reference, settings=settings) if searched else None
    if html is not None:
        from translume.drawing import trace_page

        count = view["alternatives"] if target is None and searched else 0
        others = _alternatives(translator, found, settings, count)
        write_file(html, trace_page(found, beam=beam, alternatives=others).encode())
        note(f"{html}: written")
    if as_json:
        content = {"trace": found.to_dict(), "beam": None if beam is None else beam.to_dict()}
        click.echo(json.dumps(content, ensure_ascii=False))
    elif html is None:
        from rich.console import Console

        from translume.drawing import trace_lines

        console = Console(highlight=False, soft_wrap=True)
        for line in trace_lines(found, beam=beam):
            console.print(line)


def _refuse_unread(of_corpus: bool, view: dict[str, Any], *, given: str | None) -> None:
    """SettingsError for an option that would not be read."""
    if not of_corpus:
        if view["compare"] is not None:
            raise SettingsError("inspect: --compare is for --corpus, found a TEXT")
        return
    context = click.get_current_context()
    told = [name for name in ("alternatives", "attribution") if context.get_parameter_source(name) == COMMANDLINE]
    if given is not None or told:
        raise SettingsError(
            "inspect: --target, --reference, --alternatives and --attribution are for a TEXT, found --corpus"
        )
    if questions():
        raise SettingsError(f"inspect: {NAMES} are for a TEXT, found --corpus")
    if overrides() and view["compare"] is None:
        raise SettingsError("inspect: decoding options are for a TEXT or --compare, found --corpus alone")


def _alternatives(
    translator: "Translator", found: "Trace", settings: "DecodingSettings", count: int
) -> dict[int, dict[int, "Forced"]]:
    """What the `count` likeliest tokens that were not chosen would have come to, at every step."""
    from translume.errors import TranslationError
    from translume.inspection import force_token

    others: dict[int, dict[int, Forced]] = {}
    with Meter("forcing other tokens", unit="steps", total=len(found.steps)) as meter:
        for place, (token, step) in enumerate(zip(found.target_tokens, found.steps, strict=True)):
            for candidate in [each for each in step.top_used.candidates if each.id != token.id][:count]:
                try:
                    forced = force_token(translator, found.given, place, candidate.id, settings=settings)
                except TranslationError:
                    continue  # rules leave nothing to go on with: the page says that it was not worked out
                others.setdefault(place, {})[candidate.id] = forced
            meter.advance()
    return others
