"""Upload a model to the Hugging Face Hub, with its model card."""

import re
import tempfile
import warnings
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, get_token

from translume.checkpoint import Card, Manifest, model_folder, read_vocabularies
from translume.checkpoint.folder import COMMITTED, MANIFEST, Entry, verified
from translume.checkpoint.loading import WEIGHTS
from translume.checkpoint.model_card import NAME as CARD
from translume.checkpoint.model_card import UNKNOWN_LICENCE, licence_of, render_card
from translume.checkpoint.settings import CONFIG, DECODING_FILES, stored_config
from translume.errors import ModelFolderError, check_known, suggest_keywords
from translume.interchange.certificate import Certificate
from translume.interchange.export import export
from translume.interchange.hub import LOGIN, TRANSPORT, Repository, hub_errors, progress_bars
from translume.json_values import JsonValue

Format = Literal["translume", "huggingface", "onnx", "ctranslate2"]
LIBRARIES = {"huggingface": "transformers", "onnx": "onnx", "ctranslate2": "ctranslate2"}
"""The library that loads each export, as the Hub names it."""
MAX_NAME = 96
"""The Hub's limit on the characters of owner/name."""
_NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_]([\w.-]*[A-Za-z0-9_])?", re.ASCII)
_EXAMPLE = re.compile(r"^```\ntranslume (\w+) .*? < (.*)\n```\n", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(JsonValue):
    """What was, or would be, uploaded.

    repository: "owner/name".  address: its page.  files: sizes in bytes by name.  card: the model card.
    notes: one line for each thing to look at before others see it.  commit: its hash; None if nothing was uploaded.
    """

    repository: str
    address: str
    files: dict[str, int]
    card: str
    notes: tuple[str, ...]
    commit: str | None


@suggest_keywords
def push(
    model: Path | str,
    repository: str,
    *,
    format: Format = "translume",
    private: bool = False,
    dry_run: bool = False,
    progress: bool = False,
) -> Pushed:
    """Upload a model folder to the repository "owner/name" of the Hugging Face Hub, which is created if it is new.

    The upload is one commit of the committed files without `resume/`, and README.md. Settings name training files
    without their folders, and the log is not uploaded. Files of earlier pushes that the new one lacks are removed.
    format: "translume", or a target of `export`, in fp32.  private: whether a new repository is private.
    dry_run: return what would be uploaded, without a connection.  progress: show bars on a terminal.
    Raises ModelFolderError if the folder is damaged, has no weights or the Hub refuses; SettingsError for an unknown
    format; and the errors of `export`.
    """
    check_known("format", format, get_args(Format))
    target = _repository(repository)
    folder = model_folder(model)
    with tempfile.TemporaryDirectory(prefix="translume-push-", ignore_cleanup_errors=True) as temporary:
        files, notes = _committed_files(folder)
        card = _card(folder, target)
        if format != "translume":
            exported = Path(temporary) / "export"
            card = _card_of_export(card, format, export(folder, format, exported))
            files = {path.relative_to(exported).as_posix(): path for path in exported.rglob("*") if path.is_file()}
        files[CARD] = card.encode()
        pushed = Pushed(
            repository=target.name,
            address=f"{constants.ENDPOINT}/{target.name}",
            files={name: _size(content) for name, content in sorted(files.items())},
            card=card,
            notes=notes,
            commit=None,
        )
        if dry_run:
            return pushed
        with progress_bars(progress), hub_errors(target), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on the metadata of the card
            return replace(pushed, commit=_upload(target, files, private))


def _repository(name: str) -> Repository:
    """Read "owner/name" or hf://owner/name. Raises ModelFolderError for another form."""
    plain = name.removeprefix("hf://")
    if _NAME.fullmatch(plain) is None or len(plain) > MAX_NAME:
        raise ModelFolderError(
            f"{name}: expected owner/name: letters, digits, '_', and inside a name single '-' and '.'"
        )
    return Repository(name=plain)


def _committed_files(folder: Path) -> tuple[dict[str, Path | bytes], tuple[str, ...]]:
    """Return the content of a model's files by name, and notes. Raises ModelFolderError for an incomplete model."""
    manifest = Manifest.read(folder).without_resume()
    if WEIGHTS not in manifest.files:
        raise ModelFolderError(f"{folder}: holds no weights yet: its training has not saved any")
    read_vocabularies(folder, manifest)
    config = stored_config(folder, manifest).without_folders().to_toml().encode()
    digest = sha256(config).hexdigest()
    settings = Entry(file=f"config-{digest[:16]}.toml", size=len(config), sha256=digest)
    files: dict[str, Path | bytes] = {
        entry.file: verified(folder, manifest, name) for name, entry in manifest.files.items() if name != CONFIG
    }
    stored = Manifest(files={**manifest.files, CONFIG: settings})
    files |= {settings.file: config, MANIFEST: stored.to_json().encode()}
    copies = [name for name in manifest.files if name.startswith(DECODING_FILES)]
    notes = [f"{name}: a file of [decoding], also uploaded" for name in copies]
    if licence_of(folder) == UNKNOWN_LICENCE:
        notes.append(f"{folder / CARD}: states no licence; write it after `license:` and push again")
    local = [str(each) for each in (Path.home(), folder.resolve().parent) if each != Path("/")]
    named = [each for each in local if each.encode() in config]
    notes += [f"config.toml: names the local folder {each}" for each in named]
    return files, tuple(notes)


def _card(folder: Path, target: Repository) -> str:
    """Return the model card with the repository's name in its example."""
    try:
        card = (folder / CARD).read_text(encoding="utf-8")
    except FileNotFoundError:
        config = stored_config(folder, Manifest.read(folder))
        card = render_card(target.name.partition("/")[2], config, Card(), UNKNOWN_LICENCE)
    except UnicodeDecodeError:
        raise ModelFolderError(f"{folder / CARD}: not UTF-8 text") from None
    card = card.replace(", the log is in `history.jsonl`.", ".")
    return _EXAMPLE.sub(rf"```\ntranslume \1 {target} < \2\n```\n", card, count=1)


def _card_of_export(card: str, format: str, certificate: Certificate) -> str:
    """Return the model card of an export."""
    library = LIBRARIES[format]
    card = card.replace("library_name: translume", f"library_name: {library}", 1)
    origin = f"Exported for {library}. Compared with the original, {certificate}.\n"
    example = _EXAMPLE.search(card)
    if example is None:
        return f"{card}\n{origin}"
    # Translume reads a model of transformers from the Hub, but not the other exports.
    kept = f"{example[0]}\n" if format == "huggingface" else ""
    return f"{card[: example.start()]}{kept}{origin}{card[example.end() :]}"


def _size(content: Path | bytes) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _upload(target: Repository, files: dict[str, Path | bytes], private: bool) -> str:
    """Create the repository if it is new, upload the files in one commit, and return its hash."""
    if constants.is_offline_mode():
        raise ModelFolderError(f"{target}: not uploaded: HF_HUB_OFFLINE forbids it")
    if get_token() is None:
        raise ModelFolderError(f"{target}: no token for {constants.ENDPOINT}: {LOGIN}")
    api = HfApi(library_name="translume")
    api.create_repo(target.name, private=private or None, exist_ok=True)
    old = [name for name in api.list_repo_files(target.name) if name not in files and COMMITTED.fullmatch(name)]
    added = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
    removed = [CommitOperationDelete(name) for name in old]
    try:
        commit = api.create_commit(target.name, [*added, *removed], commit_message="Upload a model by Translume")
    except (RuntimeError, ValueError) as error:  # of the library's transfers of large files, and of bad metadata
        if isinstance(error.__cause__, TRANSPORT):
            raise error.__cause__ from None
        raise ModelFolderError(f"{target}: not uploaded: {' '.join(str(error.__cause__ or error).split())}") from None
    return str(commit.oid)
