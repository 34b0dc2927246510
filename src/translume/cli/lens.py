"""`translume inspect --corpus`: two parallel files instead of a text."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.options import changed, compute
from translume.cli.terminal import Meter, note

if TYPE_CHECKING:
    from translume.config import DataSettings, DecodingSettings
    from translume.inspection.corpus_values import CorpusComparison
    from translume.translator import Translator


def show_corpus(
    model: Path, corpus: tuple[Path, Path], *, other: Path | None, count: int, html: Path | None, as_json: bool
) -> None:
    """Print, or write as a page, what a model believes of two parallel files; `count` entries of each list."""
    from translume.config import DataSettings
    from translume.data import read_pairs
    from translume.data.corpus import cached_target_counts
    from translume.inspection.corpus import inspect_corpus

    files = DataSettings(train_source=(str(corpus[0]),), train_target=(str(corpus[1]),))
    total = _length(files)
    translator = _load(model)
    opponent = None if other is None else _Opponent.of(translator, other)
    checkpoint = translator.checkpoint
    tokenizers = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    frequencies = cached_target_counts(model / "cache", translator.config.data, tokenizers)
    pairs = ((pair.source, pair.target) for pair in read_pairs(files, "train"))
    kept = list(pairs) if opponent is not None else None  # two models read it
    with Meter("looking at pairs", unit="pairs", total=total) as meter:
        lens = inspect_corpus(
            translator,
            pairs if kept is None else kept,
            show=count,
            frequencies=None if frequencies is None else frequencies.tolist(),
            progress=meter.advance,
        )
    if opponent is not None and kept is not None:
        lens = replace(lens, comparison=opponent.compared(kept, count))
    if html is not None:
        from translume.drawing import corpus_page

        write_file(html, corpus_page(lens, title=_title(model, corpus, other)).encode())
        note(f"{html}: written")
    if as_json:
        click.echo(json.dumps(lens.to_dict(), ensure_ascii=False))
    elif html is None:
        from rich.console import Console

        from translume.drawing import corpus_lines

        console = Console(highlight=False, soft_wrap=True)
        for line in corpus_lines(lens):
            console.print(line)


def _length(files: "DataSettings") -> int | None:
    """How many pairs there are, if that can be said before they are read; DataError for files of unequal length."""
    from translume.data.lines import STANDARD_INPUT, count_lines, refuse_one_input
    from translume.data.pairs import origins

    (place,) = origins(files, "train")
    refuse_one_input(*place.files)
    if STANDARD_INPUT in place.files:
        return None
    place.check_lengths()
    return count_lines(place.file)


def _load(model: Path) -> "Translator":
    from translume.translator import load_translator

    where = compute()
    return load_translator(model, device=where.device, dtype=where.plain_dtype, threads=where.threads)


@dataclass(frozen=True, slots=True)
class _Opponent:
    """Another model to compare one with, and what either searches with; refused before anything is computed."""

    translators: "tuple[Translator, Translator]"
    settings: "tuple[DecodingSettings, DecodingSettings]"

    @classmethod
    def of(cls, translator: "Translator", other: Path) -> "_Opponent":
        opponent = _load(other)
        settings = changed(translator.config, "decoding").decoding, changed(opponent.config, "decoding").decoding
        translator.check(settings[0])
        opponent.check(settings[1])
        return cls((translator, opponent), settings)

    def compared(self, pairs: list[tuple[str, str]], count: int) -> "CorpusComparison":
        from translume.inspection.comparison import compare_on_corpus

        with Meter("translating with both", unit="pairs", total=len(pairs)) as meter:
            return compare_on_corpus(
                *self.translators, pairs, settings=self.settings, show=count, progress=meter.advance
            )


def _title(model: Path, corpus: tuple[Path, Path], other: Path | None) -> str:
    against = "" if other is None else f", compared with {other.name}"
    return f"{model.name} on {corpus[0].name} and {corpus[1].name}{against}"
