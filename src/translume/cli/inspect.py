"""translume inspect"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.options import (
    FILE,
    FOLDER,
    changed,
    compute,
    compute_options,
    decoding_options,
    json_option,
    set_option,
)
from translume.cli.terminal import Meter, note
from translume.cli.writing import check_writable, write_file
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.inspection import Forced, Trace
    from translume.translator import Translator


_VIEW = "translume.inspect"


def _remember(ctx: click.Context, parameter: click.Parameter, value: int | str | None) -> None:
    ctx.meta.setdefault(_VIEW, {})[parameter.name] = value


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
    help="Tokens listed a step.",
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
@click.option("--html", type=FILE, help="Write one self-contained page to this file.")
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
    """
    from translume.inspection import record_beam, trace
    from translume.inspection.tracing import EVERYTHING
    from translume.translator import load_translator

    if (text is None) == (corpus is None):
        raise SettingsError("inspect: wanted one of TEXT and --corpus SOURCE TARGET")
    if corpus is not None and (target or reference or html):
        raise SettingsError("inspect: --target, --reference and --html are for a TEXT, found --corpus")
    if html is not None:
        check_writable(html)
    view, where = click.get_current_context().meta[_VIEW], compute()
    translator = load_translator(model, device=where.device, dtype=where.plain_dtype, threads=where.threads)
    if corpus is not None:
        _of_corpus(translator, corpus, count=2 * view["top"], as_json=as_json)
        return
    assert text is not None
    settings = changed(translator.config, "decoding").decoding
    more = [view["attribution"]] if view["attribution"] else []
    found = trace(translator, text, target, k=view["top"], settings=settings, show=(*EVERYTHING, *more))
    searched = settings.strategy in ("beam", "greedy")
    beam = record_beam(translator, text, reference=reference, settings=settings) if searched else None
    if html is not None:
        from translume.drawing import page

        count = view["alternatives"] if target is None and searched else 0
        others = _alternatives(translator, found, settings, count)
        write_file(html, page(found, beam=beam, alternatives=others).encode())
        note(f"{html}: written")
    if as_json:
        content = {"trace": found.to_dict(), "beam": None if beam is None else beam.to_dict()}
        click.echo(json.dumps(content, ensure_ascii=False))
    elif html is None:
        from rich.console import Console

        from translume.drawing import lines

        console = Console(highlight=False, soft_wrap=True)
        for line in lines(found, beam=beam):
            console.print(line)


def _of_corpus(translator: "Translator", corpus: tuple[Path, Path], *, count: int, as_json: bool) -> None:
    from translume.data import read_lines
    from translume.inspection.corpus import inspect_corpus

    sources, targets = (list(read_lines(file)) for file in corpus)
    lens = inspect_corpus(translator, sources, targets, show=count)
    if as_json:
        click.echo(json.dumps(lens.to_dict(), ensure_ascii=False))
        return
    from rich.console import Console

    from translume.drawing.corpus import corpus_lines

    console = Console(highlight=False, soft_wrap=True)
    for line in corpus_lines(lens):
        console.print(line)


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
