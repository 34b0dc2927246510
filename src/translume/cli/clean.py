"""translume data clean"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.cli.bulk import BusyError, written
from translume.cli.options import FILE, FOLDER, MODEL, json_option, set_option
from translume.cli.terminal import ProgressBar, note, print_json
from translume.errors import DataError, SettingsError
from translume.processors import usable_processors

if TYPE_CHECKING:
    from translume.config.clean import CleanSettings
    from translume.data.clean import Read, Scorer
    from translume.data.pairs import Origin, Pair


@click.command(
    "clean",
    short_help="Filter parallel data into new files, on all cores, and count what each filter drops.",
    epilog="Example: translume data clean train.en train.de --out clean --dropped dropped.jsonl",
)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--out", type=FOLDER, required=True, help="Folder for the new files, with the names of the old ones.")
@click.option("--config", type=FILE, help="TOML file with the table [clean].")
@click.option("--only", metavar="NAMES", help="Apply these filters only, with commas between them.")
@click.option("--also", metavar="NAMES", help="Apply these filters as well: language, near_duplicate and others.")
@click.option("--skip", metavar="NAMES", help="Do not apply these filters.")
@click.option("--from", "from_", metavar="CODE", help="Language of the sources, for the filter `language`.")
@click.option("--to", metavar="CODE", help="Language of the targets, for the filter `language`.")
@click.option("--dual", type=MODEL, nargs=2, metavar="FORWARD BACKWARD", help="Models for the filter `dual`.")
@click.option("--domain", type=MODEL, nargs=2, metavar="IN GENERAL", help="Language models for the filter `domain`.")
@click.option("--dropped", type=FILE, help="JSONL file for the dropped pairs, with the filter that dropped each.")
@click.option("--workers", type=click.IntRange(1, 4096), metavar="N", help="Processes.  [default: all cores]")
@json_option
@set_option
def clean(
    files: tuple[Path, ...],
    out: Path,
    config: Path | None,
    only: str | None,
    also: str | None,
    skip: str | None,
    from_: str | None,
    to: str | None,
    dual: tuple[Path, Path] | None,
    domain: tuple[Path, Path] | None,
    dropped: Path | None,
    workers: int | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Write the pairs that pass the filters to new files: read = kept + dropped.

    FILE... are a source and a target file, or a table of pairs, of which the two columns are written, and no column of
    documents; a Parquet table becomes a .jsonl file. `translume docs cleaning` describes the filters.
    """
    from translume.atomic import make_folder
    from translume.config.base import literal
    from translume.config.clean import read_clean
    from translume.data.clean import apply, decide, score
    from translume.data.filters import CODE
    from translume.data.tables import count_rows

    languages = [f"clean.{side}_language={literal(code)}" for side, code in (("source", from_), ("target", to)) if code]
    models = {"dual": dual, "domain": domain}
    needed = [name for name, wanted in {"language": languages, **models}.items() if wanted]
    also_named = [*_names(also), *needed]
    settings = read_clean(config, (*languages, *overrides), only=_names(only), also=also_named, skip=_names(skip))
    origin = _origin(files, settings)
    new = _new_files(origin, out, dropped)
    total = count_rows(origin.file)
    scorers = _scorers(settings, models, from_ or "", to or "")
    make_folder(out)
    with ProgressBar("checking", unit="pairs", total=total) as bar:
        codes, learned = decide(origin, settings, out, workers or usable_processors(), bar.update)
    if len(codes) and (codes == CODE["unreadable"]).all():
        next(origin.read())  # raises the error of the first row
    if scorers:
        with ProgressBar("scoring", unit="pairs", total=total) as bar:
            learned |= score(origin, codes, scorers, settings, out, bar.update)
    with ProgressBar("writing", unit="pairs", total=total) as bar, _writing(origin, new, dropped) as (keep, drop):
        report = apply(origin, codes, learned, keep, drop, bar.update)
    for pair in report.examples.get("empty", ())[:1] if origin.kind == "parallel" else ():
        if not f"{pair.source}{pair.target}".strip():
            note(f"{pair.file}:{pair.line}: blank on both sides; if documents end there, clean.documents='blank_line'")
    if as_json:
        print_json(report.to_dict())
    else:
        click.echo("\n".join(report.lines()))


def _scorers(
    settings: "CleanSettings", models: Mapping[str, tuple[Path, Path] | None], source: str, target: str
) -> "dict[str, Scorer]":
    """Return the scorers of the filters that need models. Raises SettingsError for one without models."""
    from translume.translator import Generator, Translator
    from translume.translator.pair_scores import domain_scorer, dual_scorer

    scorers: dict[str, Scorer] = {}
    for name, both in models.items():
        if name not in settings.filters:
            continue
        if not both:
            raise SettingsError(f"clean.filters: found '{name}', expected two models for it (--{name})")
        if name == "dual":
            scorers[name] = dual_scorer(*map(Translator.load, both), source=source, target=target)
        else:
            scorers[name] = domain_scorer(*map(Generator.load, both), side=int(settings.domain_side == "target"))
    return scorers


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _origin(files: tuple[Path, ...], settings: "CleanSettings") -> "Origin":
    """Return the files to clean. Raises DataError for files that can be read only once, or of unequal length."""
    from translume.config.data import DataSettings
    from translume.data.evaluation_files import is_table, settings_for_files
    from translume.data.lines import STANDARD_INPUT
    from translume.data.pairs import origins, refuse_pipe

    if len(files) > 2 or (len(files) == 1 and not is_table(files[0])):
        raise click.UsageError("expected SOURCE TARGET, or a table of pairs")
    for file in files:
        if str(file) == STANDARD_INPUT:
            raise DataError("standard input: can be read only once; expected a file")
        refuse_pipe(file)
    data = DataSettings(columns=settings.columns, documents=settings.documents)
    origin, *more = origins(settings_for_files(files, data), "train")
    if more:
        raise DataError(f"{files[0]}: a pattern of {1 + len(more)} files, expected one")
    origin.check_lengths()
    return origin


def _new_files(origin: "Origin", out: Path, dropped: Path | None) -> list[Path]:
    """Return the files to write for those of `origin`. Raises DataError for one that exists."""
    parquet = origin.kind == "parquet"
    new = [out / (Path(file).stem + ".jsonl" if parquet else Path(file).name) for file in origin.files]
    for place, path in enumerate(every := [*new, *([dropped] if dropped else [])]):
        if path in every[:place]:
            raise DataError(f"{path}: the name of two new files, expected different ones")
        if path.exists():
            raise DataError(f"{path}: exists already, expected a new file")
    return new


@contextmanager
def _writing(
    origin: "Origin", new: Sequence[Path], dropped: Path | None
) -> Iterator[tuple[Callable[["Pair"], object], Callable[["Read", str], None]]]:
    """Yield what writes a pair that is kept, and one that is dropped. After an error none of the files is left."""
    every = [*([dropped] if dropped else []), *new]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(written(path)) for path in every]
            keep = _keeper(origin, files[-len(new) :])

            def drop(read: "Read", name: str) -> None:
                if dropped:
                    source, target, file, line, *_ = read.pair
                    row = {"filter": name, "file": file, "line": line, "source": source, "target": target}
                    files[0].write(json.dumps(row | {"fault": read.fault}, ensure_ascii=False) + "\n")

            yield keep, drop
    except BusyError:
        raise DataError(f"{new[0]}: another process is writing it") from None
    except BaseException:
        for path in every:
            path.unlink(missing_ok=True)
        raise


def _keeper(origin: "Origin", files: Sequence[Any]) -> Callable[["Pair"], object]:
    """Return what writes a pair in the format of `origin`; a table begins with the names of its columns, if any."""
    if origin.kind == "parallel":
        document = ""

        def keep(pair: "Pair") -> None:
            nonlocal document
            end = "\n" if document and document != pair.document else ""
            document = pair.document
            for file, text in zip(files, pair[:2], strict=True):
                file.write(end + _line(text))

        return keep
    (file,) = files
    names = [str(name) for name in origin.columns] or ["source", "target"]
    if origin.kind in ("json", "parquet"):
        return lambda pair: file.write(json.dumps(dict(zip(names, pair, strict=False)), ensure_ascii=False) + "\n")
    table = csv.writer(file, lineterminator="\n")

    def write(texts: Sequence[str]) -> None:
        if origin.kind == "tsv":
            file.write(_line("\t".join(texts)))
        else:
            table.writerow(texts)

    if any(isinstance(name, str) for name in origin.columns):
        write(names)
    return lambda pair: write(pair[:2])


def _line(text: str) -> str:
    """Return a text as a line. A carriage return at its end would be part of the line end."""
    return text.replace("\r", " ") + "\n"
