"""translume translate --draft, and what drafts were worth."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.options import FILE
from translume.cli.terminal import note
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.translator import Translation, Translator

_DRAFT = "translume.draft"


def _remember(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    ctx.meta[_DRAFT] = value


draft_option = click.option(
    "--draft",
    type=FILE,
    expose_value=False,
    callback=_remember,
    help="Targets, best the training corpus', that --speculation ngram drafts from.",
)
"""--draft, read back with `drafting`."""


def drafting(translator: "Translator", settings: "DecodingSettings", workers: int | None) -> "Translator":
    """The translator, with drafts from the file that the running verb was told by --draft."""
    from translume.data import read_lines

    file: Path | None = click.get_current_context().meta.get(_DRAFT)
    if file is None:
        return translator
    if settings.speculation != "ngram":
        raise SettingsError(f"--draft {file}: found speculation '{settings.speculation}', wanted 'ngram'")
    if workers is not None and workers > 1:
        raise SettingsError(f"workers: found {workers} with --draft, wanted 1")
    return translator.draft_from(read_lines(file))


class Tally:
    """Tokens and model calls of what was translated with drafts."""

    def __init__(self) -> None:
        self.tokens = self.calls = 0

    def add(self, translation: "Translation") -> None:
        """Count a translation; one without drafts counts nothing."""
        for hypothesis in translation.hypotheses[:1]:
            if hypothesis.model_calls is not None:
                self.tokens += len(hypothesis.ids)
                self.calls += hypothesis.model_calls

    def tell(self) -> None:
        """Say on stderr how many tokens a call gave, if there were drafts."""
        if self.calls:
            each = self.tokens / self.calls
            note(f"speculation: {self.tokens:,} tokens by {self.calls:,} model calls, {each:.2f} tokens a call")
