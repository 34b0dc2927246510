"""Packages of Argos Translate, `.argosmodel`: a zip of metadata.json, a folder of CTranslate2 and a tokenizer.

Nothing is extracted under a name that the archive gives; sizes are checked before anything is read.
"""

import hashlib
import json
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from translume.atomic import digest, make_folder
from translume.checkpoint import Checkpoint
from translume.checkpoint.folder import IMPORTS
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.interchange.certificate import Certificate
from translume.interchange.ctranslate2_binary import METADATA
from translume.interchange.importing import import_folder
from translume.kernels.cpu import cache_folder

TOKENIZER, MODEL = "sentencepiece.model", "model"
SEARCH = {"beam": 4, "length_penalty": 0.2}
"""The search of Argos Translate, where it is not that of CTranslate2."""
MAX_MEMBERS, MAX_METADATA, MAX_RATIO, FREE = 10_000, 1 << 20, 20, 1 << 22
"""Maxima of an archive: members, bytes of its metadata, and bytes for each byte of the archive beyond FREE."""
IMPORT_VERSION = 2
"""Part of the name of an import in the cache. Increases when importing the same file gives another model folder."""
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, UnicodeError)
"""What the library raises for a damaged or encrypted archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that was opened.

    folder: of CTranslate2, with the tokenizer in it.  data: [data] settings.  notes: what was left out.
    """

    folder: Path
    data: Mapping[str, str]
    notes: tuple[str, ...]


@contextmanager
def opened(source: Path) -> Iterator[Package]:
    """Open a package, a file or an installed one, for as long as the context lasts.

    Raises DataError for a damaged archive, ModelFolderError for a missing part, SettingsError for what we cannot
    express.
    """
    if source.is_dir():
        names = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
        data, notes = _read(source / METADATA, (source / METADATA).read_bytes(), names)
        with tempfile.TemporaryDirectory(prefix="translume-") as around:
            for name in _needed(names):
                (Path(around) / PurePosixPath(name).name).symlink_to((source / name).absolute())
            yield Package(folder=Path(around), data=data, notes=notes)
        return
    try:
        with zipfile.ZipFile(source) as archive, tempfile.TemporaryDirectory(prefix="translume-") as around:
            members, root = _members(source, archive)
            data, notes = _read(source / root / METADATA, archive.read(members[METADATA]), members.keys())
            for name in _needed(members.keys()):
                with (
                    archive.open(members[name]) as read,
                    (Path(around) / PurePosixPath(name).name).open("xb") as written,
                ):
                    shutil.copyfileobj(read, written, 1 << 20)
            yield Package(folder=Path(around), data=data, notes=notes)
    except _DAMAGED:
        raise DataError(f"{source}: damaged, or not a package of Argos Translate") from None


def _members(source: Path, archive: zipfile.ZipFile) -> tuple[dict[str, zipfile.ZipInfo], str]:
    """Return the files of an archive by their names in its only folder, and the name of that folder.

    Raises DataError if there are too many, they are too large, or one lies outside of the folder.
    """
    infos = [info for info in archive.infolist() if not info.is_dir()]
    for what, found, limit in (
        ("files", len(infos), MAX_MEMBERS),
        ("bytes unpacked", sum(info.file_size for info in infos), FREE + MAX_RATIO * source.stat().st_size),
    ):
        if found > limit:
            raise DataError(f"{source}: found {found:,} {what}, expected at most {limit:,}")
    for info in infos:
        place = PurePosixPath(info.filename)
        if place.is_absolute() or ".." in place.parts or "\\" in info.filename:
            raise DataError(f"{source}: {info.filename!r} lies outside the package; refused")
    roots = [PurePosixPath(info.filename).parent for info in infos if PurePosixPath(info.filename).name == METADATA]
    root = min(roots, key=lambda each: len(each.parts), default=None)
    if root is None:
        raise ModelFolderError(f"{source}: lacks {METADATA}, expected a package of Argos Translate")
    inside = {info.filename: info for info in infos if PurePosixPath(info.filename).is_relative_to(root)}
    named = {PurePosixPath(name).relative_to(root).as_posix(): info for name, info in inside.items()}
    if named[METADATA].file_size > MAX_METADATA:
        raise DataError(f"{source}: {METADATA}: found {named[METADATA].file_size:,} bytes, expected {MAX_METADATA:,}")
    return named, str(root)


def _needed(names: Any) -> list[str]:
    """Return the names of the files of the model and of the tokenizer."""
    return [name for name in names if name == TOKENIZER or str(PurePosixPath(name).parent) == MODEL]


def _read(place: Path, content: bytes, names: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return [data] settings and notes. Raises SettingsError for what we cannot express."""
    try:
        metadata = json.loads(content)
        kind, prefix = metadata.get("type", "translate"), metadata.get("target_prefix", "")
        codes = {"source_language": metadata["from_code"], "target_language": metadata["to_code"]}
    except (ValueError, RecursionError, KeyError, AttributeError):
        raise DataError(f"{place}: damaged: expected a JSON object with from_code and to_code") from None
    if not all(isinstance(code, str) and code for code in codes.values()):
        raise DataError(f"{place}: from_code, to_code: found {list(codes.values())}, expected codes of languages")
    for name, found, wanted in (("type", kind, "translate"), ("target_prefix", prefix, "")):
        if found != wanted:
            raise SettingsError(f"{place}: {name}: found {found!r}, expected {wanted!r}")
    if TOKENIZER not in names:
        found = "bpe.model, which needs the rules of Moses" if "bpe.model" in names else "nothing"
        raise SettingsError(f"{place.parent}: tokenizer: found {found}, expected {TOKENIZER}")
    splitters = sorted({name.split("/")[0] for name in names} & {"stanza", "minisbd", "spacy"})
    return codes, tuple(f"{name} is left out: sentences are split by Translume's rules" for name in splitters)


def cached_import(source: Path) -> Path:
    """Return the import of a package or a folder of CTranslate2 in the user's cache, after making it if it is new.

    Its name has the digest of the content. It is not compared with CTranslate2; `translume import` does that.
    """
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    content = "".join(f"{path.relative_to(source)} {digest(path)}\n" for path in files)
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    name = source.resolve().stem if source.is_file() else source.resolve().name
    folder = cache_folder() / IMPORTS / f"{key}-{IMPORT_VERSION}" / name
    if not folder.exists():
        try:
            make_folder(folder.parent)
            import_folder(source, folder, "hf", name, compare=False)
        except TranslumeError:
            if not folder.exists():  # else another process made it at the same time
                raise
    return folder


def write_argos(checkpoint: Checkpoint, folder: Path, dtype: str) -> Certificate:
    """Write a package, NAME.argosmodel, into the existing empty `folder`; see `write_ctranslate2`.

    Raises SettingsError for a model without languages, or whose tokenizer is no SentencePiece model.
    """
    from translume.interchange.ctranslate2 import write_ctranslate2

    data, sentences = checkpoint.config.data, checkpoint.source_tokenizer.vocabulary.sentences
    codes = data.source_language, data.target_language
    if not all(codes):
        raise SettingsError("data: found no source_language and target_language, expected both for argos")
    if sentences is None or sentences != checkpoint.target_tokenizer.vocabulary.sentences:
        raise SettingsError(
            f"tokenizer.kind: found {checkpoint.source_tokenizer.settings.kind!r}, expected one SentencePiece model of "
            "both sides for argos"
        )
    with tempfile.TemporaryDirectory(prefix="translume-") as around:
        model = Path(around) / MODEL
        model.mkdir()
        certificate = write_ctranslate2(checkpoint, model, dtype)  # type: ignore[arg-type]  # it refuses other names
        metadata = {
            "package_version": "1.0", "argos_version": "1.9.0", "type": "translate", "from_code": codes[0],
            "from_name": codes[0], "to_code": codes[1], "to_name": codes[1],
        }  # fmt: skip
        root = f"translate-{codes[0]}_{codes[1]}-1_0"
        with zipfile.ZipFile(folder / f"{root}.argosmodel", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(f"{root}/{METADATA}", json.dumps(metadata, indent=1))
            archive.writestr(f"{root}/{TOKENIZER}", sentences.content)
            for path in sorted(model.iterdir()):
                archive.write(path, f"{root}/{MODEL}/{path.name}")
    return certificate
