"""Sheets for human judgement by MQM or ESA: written blind and shuffled, read back, checked and scored."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from translume.atomic import write_file
from translume.data.tables import first_row, read_columns
from translume.errors import DataError, SettingsError, check_known, similar
from translume.evaluation.scores import Counts, Score
from translume.evaluation.significance import SEED

COLUMNS = {"mqm": ("category", "severity", "span"), "esa": ("score", "errors")}
"""Columns that judges fill in, by the kind of sheet: MQM (Freitag et al. 2021), or ESA (Kocmi et al. 2024). All but the
last are scored, which says where errors are."""
CATEGORIES = (
    *(f"accuracy/{each}" for each in ("addition", "omission", "mistranslation", "untranslated-text")),
    *(f"fluency/{each}" for each in ("punctuation", "spelling", "grammar", "register", "inconsistency")),
    *("fluency/character-encoding", "terminology/inappropriate-for-context", "terminology/inconsistent-use"),
    *(f"locale-convention/{each}-format" for each in ("address", "currency", "date", "name", "telephone", "time")),
    *("style/awkward", "other", "source-error", "non-translation"),
)
WEIGHTS = {"no-error": 0.0, "neutral": 0.0, "minor": 1.0, "major": 5.0}
"""Penalties by severity, but for two categories (Freitag et al. 2021, table 4)."""
SPECIAL = {("fluency/punctuation", "minor"): 0.1, ("non-translation", "major"): 25.0}
SENTENCES = 100
"""Sentences of a sheet."""
Systems = Mapping[str, Sequence[str]]
"""Translations of the same sources, by the names of systems."""


def key_of(sheet: Path) -> Path:
    """Return the name of the file that says which row of a sheet is whose: "a.key.tsv" for "a.tsv"."""
    return sheet.with_suffix(f".key{sheet.suffix}")


def check_sheet(sheet: Path) -> None:
    """Raise an error for a sheet that would not be a .tsv file, or exists, since it may hold judgements."""
    if sheet.suffix != ".tsv":
        raise SettingsError(f"--sheet: found '{sheet}', expected a name that ends in .tsv")
    for path in (sheet, key_of(sheet)):
        if path.exists():
            raise DataError(f"{path}: exists, and judgements may need it; expected a new name")


def write_sheet(
    kind: str, sheet: Path, sources: Sequence[str], systems: Systems, sentences: int = SENTENCES, seed: int = SEED
) -> int:
    """Write a sheet with a row for each system and sentence, and its key; return the number of rows.

    kind: "mqm" or "esa".  systems: translations of `sources`, by names that only the key has.
    sentences: how many are drawn, if there are more. `seed` determines them, and the order of the rows.
    """
    check_sheet(sheet)
    generator = np.random.default_rng(seed)
    drawn = np.sort(generator.permutation(len(sources))[:sentences]).tolist()
    rows = [(system, line) for line in drawn for system in systems]
    lines, key = [["id", "source", "translation", *COLUMNS[kind]]], [["id", "system", "line"]]
    for number, place in enumerate(generator.permutation(len(rows)).tolist(), start=1):
        system, line = rows[place]
        texts = (" ".join(text.split()) for text in (sources[line], systems[system][line]))
        lines.append([f"r{number:04}", *texts, *("" for _ in COLUMNS[kind])])
        key.append([f"r{number:04}", system, str(line + 1)])
    for path, table in ((key_of(sheet), key), (sheet, lines)):
        write_file(path, "".join("\t".join(row) + "\n" for row in table).encode())
    return len(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """What judges said.  systems: for each the sums [n, 2] of its n sentences: the mean of the judges, and 1."""

    kind: str
    judges: int
    systems: Mapping[str, Counts]

    def score(self, total: Counts) -> Score:
        """Return the mean of sentences: the penalty of MQM (0 is best), or the score of ESA (100 is best)."""
        weights = "|weights:25/5/1/0.1" if self.kind == "mqm" else ""
        value = float(total[0] / total[1])
        return Score(name=self.kind, title=self.kind.upper(), value=value, signature=f"judges:{self.judges}{weights}")


def read_judgements(key: Path, sheets: Sequence[Path]) -> Judgements:
    """Read sheets, each of one judge, whose systems `key` names.

    Rows of MQM are errors: a row is copied for each further error. Raises DataError for a row that cannot be scored,
    and for rows that are missing.
    """
    rows = {each[0]: (each[1], each[2]) for _, each in read_columns(str(key), ("id", "system", "line"))}
    if not rows:
        raise DataError(f"{key}: found no rows, expected those of a sheet: id, system and line")
    kinds = {"mqm" if "severity" in first_row(str(sheet)) else "esa" for sheet in sheets}
    if len(kinds) != 1:
        raise DataError(f"--judgements: found sheets of {' and '.join(sorted(kinds)) or 'no kind'}, expected one kind")
    (kind,) = kinds
    sums = dict.fromkeys(rows, 0.0)
    for sheet in sheets:
        seen = set[str]()
        for line, (id_, *cells) in read_columns(str(sheet), ("id", *COLUMNS[kind][:-1])):
            place = f"{sheet}:{line}"
            if id_ not in rows:
                raise DataError(f"{place}: id: found '{id_}', expected one of {key}{similar(id_, rows)}")
            if kind == "esa" and id_ in seen:
                raise DataError(f"{place}: id: found '{id_}' twice, expected one score for each row")
            sums[id_] += (_penalty if kind == "mqm" else _points)(place, *cells) / len(sheets)
            seen.add(id_)
        if missing := [id_ for id_ in rows if id_ not in seen]:
            raise DataError(f"{sheet}: {len(missing)} of {len(rows)} rows are missing, the first is {missing[0]}")
    table: dict[str, dict[str, float]] = {}
    for id_, (system, sentence) in rows.items():
        table.setdefault(system, {})[sentence] = sums[id_]
    if len({frozenset(lines) for lines in table.values()}) > 1:
        raise DataError(f"{key}: found systems with different lines, expected the same lines of all")
    systems = {name: np.array([(table[name][each], 1.0) for each in sorted(table[name])]) for name in sorted(table)}
    return Judgements(kind=kind, judges=len(sheets), systems=systems)


def _penalty(place: str, *cells: str) -> float:
    """Return the penalty of an error of MQM."""
    category, severity = ("-".join(cell.lower().split()) for cell in cells)
    check_known(f"{place}: severity", severity, WEIGHTS, DataError)
    if category or severity != "no-error":
        check_known(f"{place}: category", category, CATEGORIES, DataError)
    return SPECIAL.get((category, severity), WEIGHTS[severity])


def _points(place: str, cell: str) -> float:
    """Return the score of ESA."""
    try:
        points = float(cell.replace(",", "."))
    except ValueError:
        points = math.nan
    if not 0 <= points <= 100:
        raise DataError(f"{place}: score: found '{cell}', expected a number from 0 to 100")
    return points
