"""`translume inspect --corpus`: files of pairs instead of a text."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.bulk import INSPECT, Bulk, pair_works, process_files
from translume.cli.inspect import CORPUS_ENTRIES, CORPUS_PAGE_ENTRIES, InspectOptions, print_lines
from translume.cli.options import changed
from translume.cli.terminal import ProgressBar, note
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import DataSettings, DecodingSettings
    from translume.inspection.corpus import CorpusComparison
    from translume.translator import Translator


def inspect_files(options: InspectOptions) -> None:
    """Print, or write as a page, what a model predicts for files of pairs."""
    from translume.checkpoint import read_config
    from translume.data import read_pairs
    from translume.data.corpus import cached_target_counts
    from translume.data.evaluation_files import refuse_tables, settings_for_files
    from translume.inspection.corpus import inspect_corpus

    model, corpus, other, html = options.model, options.corpus, options.other, options.html
    count = options.top or (CORPUS_ENTRIES if html is None else CORPUS_PAGE_ENTRIES)
    data = read_config(model).data
    if len(corpus) == 2:
        refuse_tables(*corpus, data)
    files = settings_for_files(corpus, data)
    total = _length(files)
    translator = options.compute.load_plain(model)
    compared_model = None if other is None else _ComparedModel.load(translator, other, options)
    checkpoint = translator.checkpoint
    tokenizers = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    frequencies = cached_target_counts(model / "cache", translator.config.data, tokenizers)
    pairs = ((pair.source, pair.target) for pair in read_pairs(files, "train"))
    kept = list(pairs) if compared_model is not None else None  # read by both models
    with ProgressBar("inspecting", unit="pairs", total=total) as bar:
        lens = inspect_corpus(
            translator,
            pairs if kept is None else kept,
            show=count,
            frequencies=None if frequencies is None else frequencies.tolist(),
            progress=bar.advance,
        )
    if compared_model is not None and kept is not None:
        lens = replace(lens, comparison=compared_model.compare(kept, count))
    if html is not None:
        from translume.drawing import corpus_page

        write_file(html, corpus_page(lens, title=_title(model, corpus, other)).encode())
        note(f"{html}: written")
    if options.as_json:
        click.echo(json.dumps(lens.to_dict(), ensure_ascii=False))
    elif html is None:
        from translume.drawing import corpus_lines

        print_lines(corpus_lines(lens))


def judge_files(options: InspectOptions, folder: Path) -> None:
    """Write, for each pair of many files, how probable its target is with and without its source."""
    from translume.inspection.corpus import JUDGE
    from translume.translator.bulk import as_object

    files, translator = options.files, options.compute.load_plain(options.model)
    if translator.config.data.source.reader:
        found = translator.config.data.source.kind
        raise SettingsError(f"--input: found data.source = '{found}', expected texts to compare with an empty one")
    bulk = Bulk(
        model=options.model,
        loaded=translator,
        job=JUDGE,
        verb=INSPECT,
        settings=translator.config.decoding,
        count=options.workers,
        cluster=files.address,
        stops=files.on_error == "stop",
        row=as_object,
    )
    if process_files(pair_works(files, folder, translator.config, ".jsonl"), bulk):
        click.get_current_context().exit(1)


def _length(files: "DataSettings") -> int | None:
    """Return the number of pairs, or None if standard input is read. Raises DataError for files of unequal length."""
    from translume.data.lines import STANDARD_INPUT, count_lines, refuse_one_input
    from translume.data.pairs import origins

    (origin,) = origins(files, "train")
    if origin.target_file:
        refuse_one_input(origin.file, origin.target_file)
    if STANDARD_INPUT in origin.files:
        return None
    origin.check_lengths()
    return count_lines(origin.file)


@dataclass(frozen=True, slots=True)
class _ComparedModel:
    """The model to compare with, and the settings of both searches, validated before anything is computed."""

    translators: "tuple[Translator, Translator]"
    settings: "tuple[DecodingSettings, DecodingSettings]"

    @classmethod
    def load(cls, translator: "Translator", other: Path, options: InspectOptions) -> "_ComparedModel":
        both = translator, options.compute.load_plain(other)
        first, second = (changed(each.config, options.overrides, "decoding").decoding for each in both)
        both[0].check(first)
        both[1].check(second)
        return cls(both, (first, second))

    def compare(self, pairs: list[tuple[str, str]], count: int) -> "CorpusComparison":
        from translume.inspection.comparison import compare_on_corpus

        with ProgressBar("translating with both", unit="pairs", total=len(pairs)) as bar:
            return compare_on_corpus(*self.translators, pairs, settings=self.settings, show=count, progress=bar.advance)


def _title(model: Path, corpus: tuple[Path, ...], other: Path | None) -> str:
    against = "" if other is None else f", compared with {other.name}"
    return f"{model.name} on {' and '.join(file.name for file in corpus)}{against}"
