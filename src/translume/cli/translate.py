"""translume translate"""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.atomic import write_file
from translume.cli.bulk import (
    FileOptions,
    FileWork,
    file_options,
    line_row,
    print_warnings,
    start_workers,
    text_files,
    warnings_of,
)
from translume.cli.group import interrupt_hint
from translume.cli.options import (
    FILE,
    MODEL,
    Compute,
    changed,
    decoding_options,
    engine_compute_options,
    ensemble_options,
    json_option,
    load_ensemble,
    refuse_text,
    set_option,
)
from translume.cli.terminal import LimitCount, ProgressBar, warn
from translume.documents import FORMATS, ZIPPED
from translume.errors import DataError, DocumentError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Generator

    from translume.config import DecodingSettings
    from translume.decoding import Average
    from translume.documents.files import Document
    from translume.translator import Segment, Translation, Translator


def is_document(file: str) -> bool:
    """Return whether a file is translated as a document, by its suffix. Plain text is translated line by line."""
    return _suffix(file) in FORMATS and _suffix(file) != ".txt"


def check_output(file: str, out: Path | None) -> None:
    """Raise SettingsError if the translation of a document cannot be shown, DataError if it cannot be written."""
    if out is not None and not out.absolute().parent.is_dir():
        raise DataError(f"{out.parent}: no such folder")
    if out is None and _suffix(file) in ZIPPED and sys.stdout.isatty():
        raise SettingsError(
            f"{file}: a terminal cannot show a {_suffix(file)} file; add `> FILE{_suffix(file)}` or --out FILE"
        )


def translate_document(
    file: str,
    out: Path | None,
    translator: "Translator",
    settings: "DecodingSettings",
    translate: Callable[[Iterable[str], "DecodingSettings"], Iterable["Translation"]],
    encoding: str = "",
) -> None:
    """Translate a document to a file, or to standard output. Raises DataError and DocumentError that name the file.

    translate: translates lines in order.  encoding: of a document of plain text; empty to detect it.
    """
    from translume.documents.files import translated_file
    from translume.documents.segments import language_tag
    from translume.documents.sentences import translated_runs
    from translume.translator.planning import LineError, splits_sentences

    splits = splits_sentences(translator.checkpoint, settings.split)
    language = translator.config.data.source_language if splits else None
    document, warnings = _read(file, translator.config.data.source_language, encoding)
    for warning in warnings:
        warn(f"{file}: {warning}")
    with ProgressBar("translating", unit="sentences") as bar:

        def counted(lines: Iterable[str], alignment: bool) -> Iterable["Translation"]:
            aligned = alignment and not translator.config.without_tokens  # for markup
            chosen = settings.model_copy(update={"alignment": aligned, "split": "never"})
            for translation in translate(lines, chosen):
                bar.advance()
                for warning in translation.warnings:
                    warn(f"{file}: sentence {bar.done}: {warning}")
                yield translation

        try:
            in_order = translator.config.data.context.used
            runs = translated_runs(document.segments, language, counted, bar.expect, in_order=in_order)
        except LineError as error:
            raise DocumentError(f"{file}: {error.reason}") from None
    try:
        written = translated_file(_suffix(file), document, runs, language_tag(translator.config.data.target_language))
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}") from None
    write_result(written, out)


def write_result(data: bytes, out: Path | None) -> None:
    """Write a complete translation to a file, or to standard output; DataError if the file cannot be written."""
    if out is not None:
        write_file(out, data)
        return
    # Bytes go past the text layer, which may hold earlier output.
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _read(file: str, language: str, encoding: str) -> "tuple[Document, list[str]]":
    from translume.documents.files import read_document

    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    try:
        return read_document(_suffix(file), data, language, encoding)
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}") from None


def _suffix(file: str) -> str:
    return Path(file).suffix.lower()


NOTHING_WRITTEN = "Interrupted; nothing was written."
Constraints = Iterable[Iterable[str]] | None
"""The phrases that each line's target must contain; None for no constraints."""


@click.command(
    "translate",
    short_help="Translate lines of text, or a document.",
    epilog="Example: translume translate models/en-de < test.en > test.de",
)
@click.argument("model", type=MODEL)
@click.argument("file", default="-", metavar="[FILE]")
@decoding_options
@click.option(
    "--constraints-per-line",
    "constraints",
    type=FILE,
    help="Words and phrases that each target must contain: one line for each input line, separated by tabs.",
)
@click.option("--out", type=FILE, help="File to write instead of standard output, once it is complete.")
@file_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["txt", "srt", "vtt", "json"]),
    help="For the recording FILE: plain text, or with times as SubRip, WebVTT or JSON.",
)
@click.option(
    "--encoding", default="", metavar="NAME", help="Of the document FILE, such as cp1252; else it is detected."
)
@json_option
@set_option
@ensemble_options
@engine_compute_options
def command(
    model: Path,
    file: str,
    constraints: Path | None,
    others: tuple[Path, ...],
    average: "Average | None",
    out: Path | None,
    files: FileOptions,
    form: str | None,
    encoding: str,
    as_json: bool,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Translate lines of standard input, or of FILE, to standard output, one line for each input line.

    A FILE whose name ends in .docx, .pptx, .odt, .odp, .xlsx, .epub, .html, .htm, .srt, .vtt, .md, .po, .json, .xliff,
    .xlf, .properties, .xml or .tmx is translated as a document that keeps its format: `translume translate models/en-de
    report.docx > bericht.docx`. Of a .pdf the text is translated. Of .xml, only the texts of Android apps are.

    For a model trained on tables, a FILE named .tsv, .csv, .jsonl or .parquet is a table: the column of the sources,
    or the columns of the template, as in training. Its rows give one line each.

    For a model of recordings, images or arrays, a FILE that is one of these is translated, not a list of paths:
    `translume translate models/whisper talk.mp3 --format srt > talk.srt`. Subtitles are written window by window.

    With --nbest, every output line has three fields separated by tabs: the number of the input line, the score, the
    translation.

    With --input and --output, many files are translated, with --workers N by N processes. An output is written when it
    is complete, so the same command continues after an interruption. A line that cannot be translated is reported and
    becomes an empty line.
    """
    from translume.data.evaluation_files import read_documents, read_sources
    from translume.data.lines import read_lines

    single = ("FILE", "--out", "--format", "--json", "--constraints-per-line")
    folder = files.folder(*single, shares_lines=True)
    check_output(file, out)
    refuse_text(file, f"translate {shlex.quote(str(model))}")
    translator = load_ensemble(model, others, average, compute)
    settings = changed(translator.config, overrides, "decoding").decoding
    lines_only = {"--json": as_json, "--constraints-per-line": constraints, "--nbest": settings.nbest > 1}
    if folder is not None:
        if settings.nbest > 1:
            raise SettingsError("--nbest cannot be combined with --input")
        from translume.translator import Translator

        translator.check(settings)
        work = FileWork(
            model=model,
            loaded=translator,
            work=Translator.translate_lines,
            settings=settings,
            files=files,
            row=partial(line_row, value=str),
            report=print_warnings,
        )
        work.run(text_files(files, translator.config.data))
        return
    if form is not None or (translator.reads_frames and _is_source(file)):
        _check_recording(file, form, translator)
        _refuse(lines_only, f"{file}, which is one source")
        _transcribe(file, form or "txt", out, translator, settings)
        return
    if is_document(file):
        if translator.reads_frames:
            kind = translator.config.data.source.kind
            raise SettingsError(f"{file}: a document, which a model with data.source = '{kind}' does not read")
        _refuse(lines_only, f"{file}, which is a document")
    elif encoding:
        raise SettingsError("--encoding is for documents; lines of text are UTF-8")
    translator.check(settings)
    shared = start_workers(model, translator, files)
    with shared or nullcontext():

        def translations(
            texts: Iterable[str], settings: "DecodingSettings", phrases: Constraints = None
        ) -> "Iterator[Translation]":
            data = translator.config.data
            documents = data.context.used if is_document(file) else read_documents(file, data)
            if shared is None:
                names = None if isinstance(documents, bool) else documents
                return translator.translate_all(texts, settings=settings, constraints=phrases, documents=names)
            return shared.translate_all(texts, settings, phrases, frames=translator.reads_frames, documents=documents)

        if is_document(file):
            with interrupt_hint(NOTHING_WRITTEN):
                translate_document(file, out, translator, settings, translations, encoding)
            return
        printed: list[str] = []
        with (
            ProgressBar("translating", unit="lines", prints=out is None) as bar,
            interrupt_hint(bar.hint if out is None else NOTHING_WRITTEN),
        ):
            lines = read_sources(file, translator.config.data)
            required = None if constraints is None else _fields(read_lines(constraints))
            # A typed line is translated at once; files and pipes are read ahead, for batches of similar lengths.
            typed = (([line], required and islice(required, 1)) for line in lines)
            parts = typed if file == "-" and sys.stdin.isatty() else [(lines, required)]
            count = LimitCount()
            for part, phrases in parts:
                for translation in translations(part, settings, phrases):
                    bar.advance()
                    count.add(translation)
                    for warning in warnings_of(translation):
                        warn(f"line {bar.done}: {warning}")
                    for line in _output_lines(translation, bar.done, as_json=as_json, nbest=settings.nbest > 1):
                        if out is None:
                            click.echo(line)
                        else:
                            printed.append(f"{line}\n")
            count.report()
    if out is not None:
        write_result("".join(printed).encode(), out)


def _refuse(options: Mapping[str, object], other: str) -> None:
    """Raise SettingsError for the first option that was given."""
    for option in (option for option, value in options.items() if value):
        raise SettingsError(f"{option} cannot be combined with {other}")


def _is_source(file: str) -> bool:
    """Return whether a file is a recording, an image or an array, rather than lines with paths."""
    from translume.sources.headers import kind_of

    return file != "-" and kind_of(Path(file)) is not None


def _check_recording(file: str, form: str | None, translator: "Translator") -> None:
    """Raise SettingsError for --format without a recording."""
    source = translator.config.data.source
    if form is not None and not source.window:
        raise SettingsError(
            f"--format: found '{form}' with data.source = '{source.kind}', expected an imported Whisper"
        )
    if file == "-":
        raise SettingsError("--format: found no FILE, expected that of a recording")


def _transcribe(file: str, form: str, out: Path | None, translator: "Translator", settings: "DecodingSettings") -> None:
    """Write what is said in a recording; subtitles on standard output as soon as a window is done."""
    from translume.documents.transcripts import transcript

    if out is None and form in ("srt", "vtt"):
        with interrupt_hint("Interrupted; the segments so far were written."):
            transcribed = _write_segments(translator.segments(file, settings=settings), form)
    else:
        timed = settings.timestamps or (form != "txt" and translator.config.data.source.window > 0)
        with interrupt_hint(NOTHING_WRITTEN):
            transcribed = translator.translate(file, settings=settings.model_copy(update={"timestamps": timed}))
            write_result(transcript(transcribed, form).encode(), out)
    for warning in warnings_of(transcribed):
        warn(f"{file}: {warning}")


def _write_segments(segments: "Generator[Segment, None, Translation]", form: str) -> "Translation":
    """Print each segment when it is known, and return the translation; together they are its `transcript`."""
    from translume.documents.transcripts import header, written

    begin, number = header(form), 0
    while True:
        try:
            segment = next(segments)
        except StopIteration as stop:
            click.echo(begin, nl=False)
            transcribed: Translation = stop.value
            return transcribed
        click.echo(begin + written(segment, number, form), nl=False)
        begin, number = "", number + 1


def _fields(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the phrases of each line."""
    return ([field for field in line.split("\t") if field.strip()] for line in lines)


def _output_lines(translation: "Translation", line: int, *, as_json: bool, nbest: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(translation.to_dict(), ensure_ascii=False)
    elif nbest and translation.hypotheses:
        for hypothesis in translation.hypotheses:
            yield f"{line}\t{hypothesis.score:.6f}\t{hypothesis.text}"
    else:
        yield f"{line}\t0\t" if nbest else translation.text
