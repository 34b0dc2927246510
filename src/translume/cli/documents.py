"""Documents for `translume translate`: read, translate, write."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from translume.atomic import write_file
from translume.cli.terminal import ProgressBar, warn
from translume.documents import SUFFIXES, ZIPPED
from translume.errors import DataError, DocumentError, SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.documents.files import Document
    from translume.translator import Translation, Translator


def is_document(file: str) -> bool:
    """Return whether a file is translated as a document, by its suffix. Plain text is translated line by line."""
    return _suffix(file) in SUFFIXES and _suffix(file) != ".txt"


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
) -> None:
    """Translate a document to a file, or to standard output. Raises DataError and DocumentError that name the file.

    translate: translates lines in order.
    """
    try:
        from translume.documents.sentences import translated_runs
        from translume.translator.planning import LineError, splits_sentences
    except ModuleNotFoundError as error:
        raise SettingsError(f"{file}: {error.name} is not installed; pip install 'translume[documents]'") from None

    splits = splits_sentences(translator.checkpoint, settings.split)
    language = translator.config.data.source_language if splits else None
    document = _read(file)
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
            runs = translated_runs(document.segments, language, counted, bar.expect)
        except LineError as error:
            raise DocumentError(f"{file}: {error.reason}") from None
    write_result(document.with_runs(runs), out)


def write_result(data: bytes, out: Path | None) -> None:
    """Write a complete translation to a file, or to standard output; DataError if the file cannot be written."""
    if out is not None:
        write_file(out, data)
        return
    # Bytes go past the text layer, which may hold earlier output.
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _read(file: str) -> "Document":
    from translume.documents.files import FORMATS

    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    try:
        return FORMATS[_suffix(file)].read(data)
    except DocumentError as error:
        raise DocumentError(f"{file}: {error}") from None


def _suffix(file: str) -> str:
    return Path(file).suffix.lower()
