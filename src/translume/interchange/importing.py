"""Import a model of transformers or Marian into a model folder, and compare it with the original."""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from translume.atomic import make_folder
from translume.checkpoint import Card, Checkpoint, commit, free, load_checkpoint, save_model, write_card
from translume.checkpoint.source import hub_function, is_hub, repository_name
from translume.errors import ModelFolderError, SettingsError, TranslumeError, nearest, suggest_keywords
from translume.interchange.certificate import Certificate
from translume.interchange.huggingface.reader import Sinusoids, read_huggingface
from translume.interchange.marian import is_marian

CERTIFICATE = "import.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import.

    certificate: how far the reloaded model is from the original; None for a model of Marian if pymarian is not
    installed.  notes: one line for each thing left out.
    """

    certificate: Certificate | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"certificate": self.certificate and self.certificate.to_dict(), "notes": list(self.notes)}


@suggest_keywords
def import_model(
    source: Path | str, folder: Path | str, *, positions: Sinusoids = "hf", vocabularies: Sequence[Path | str] = ()
) -> Imported:
    """Import a model of transformers or Marian into the new model folder `folder`.

    source: a folder as transformers saves it, or hf://owner/name[@revision], a repository of the Hugging Face Hub; or
    weights of Marian (.npz or .bin), or a folder with one such file.
    positions: "hf" for the sinusoids of transformers, "marian" for those that Marian trained an OPUS model with.
    vocabularies: for Marian, the vocabularies of source and target; by default found beside the weights.
    Raises SettingsError naming what cannot be expressed, ModelFolderError or DataError for missing or damaged files,
    TranslumeError if `folder` is not empty or the two models differ too much. Then nothing is written.
    """
    if positions not in get_args(Sinusoids):
        raise SettingsError(f"positions: found {positions!r}{nearest(positions, get_args(Sinusoids))}")
    if is_hub(source):
        found: Imported = hub_function("import_repository")(repository_name(source), Path(folder), positions)
        return found
    name = Path(source).resolve().name
    return import_folder(Path(source), Path(folder), positions, name, [Path(each) for each in vocabularies])


def import_folder(
    source: Path, folder: Path, positions: Sinusoids, origin: str, vocabularies: Sequence[Path] = ()
) -> Imported:
    """Import a folder or file as `import_model` does.  origin: the name of the model on the model card."""
    if not source.exists():
        raise ModelFolderError(f"{source}: no such folder, expected one as transformers saves it, or a .npz of Marian")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TranslumeError(f"{folder}: already exists, expected a new or empty folder")
    original = _original(source, positions, vocabularies)
    try:
        make_folder(folder.parent)
        around = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        made = around / folder.name  # the card has the name of its folder
        save_model(made, original.checkpoint)
        free(original.checkpoint.model)
        saved = load_checkpoint(made, device="cpu", dtype="fp32")
        certificate = original.compare(saved) if original.compare else None
        _certify(made, origin, original, certificate)
        made.replace(folder)
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(around, ignore_errors=True)
    return Imported(certificate=certificate, notes=original.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Original:
    """A model that was read.

    toolkit: its name on the model card.  compare: compares the saved checkpoint with the original, if that is possible.
    """

    toolkit: str
    checkpoint: Checkpoint
    notes: tuple[str, ...]
    compare: Callable[[Checkpoint], Certificate] | None


def _original(source: Path, positions: Sinusoids, vocabularies: Sequence[Path]) -> _Original:
    if is_marian(source):
        return _of_marian(source, vocabularies)
    if not source.is_dir():
        raise ModelFolderError(f"{source}: not a folder, expected one as transformers saves it, or a .npz of Marian")
    if vocabularies:
        raise SettingsError(f"vocabularies: found them for {source}, a model of transformers, which has its own")
    compare = _imported("translume.interchange.huggingface.compare", "compare_with_huggingface")
    found = read_huggingface(source, positions)
    return _Original(
        toolkit="transformers",
        checkpoint=found.checkpoint,
        notes=found.notes,
        compare=lambda checkpoint: compare(checkpoint, source),
    )


def _of_marian(source: Path, vocabularies: Sequence[Path]) -> _Original:
    """Read a model of Marian."""
    found = _imported("translume.interchange.marian.reader", "read_marian")(source, vocabularies)
    compare, reason = _imported("translume.interchange.marian.compare", "comparison")(found)
    notes = found.notes if compare else (*found.notes, f"not compared with Marian: {reason}")
    return _Original(toolkit="Marian", checkpoint=found.checkpoint, notes=notes, compare=compare)


def _imported(module: str, name: str) -> Any:
    """Return a function of a module that needs the extra `export`."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise SettingsError(f"import: {error.name} is not installed; pip install 'translume[export]'") from None


def _certify(made: Path, origin: str, original: _Original, certificate: Certificate | None) -> None:
    """Add the certificate to the model folder and to its model card."""
    checkpoint = original.checkpoint
    found = {"source": origin, **({} if certificate is None else asdict(certificate)), "notes": list(original.notes)}
    line = f"imported from {origin} of {original.toolkit}"
    if certificate is not None:
        line += (
            f"; {certificate.tokens} tokens of {certificate.sentences} random sentences differ by at most "
            f"{certificate.difference:.2g} nats, {certificate.mean_difference:.2g} on average"
        )
    parameters = sum(tensor.numel() for tensor in checkpoint.model.parameters())
    card = Card(parameters=parameters, data="\n".join([line, *original.notes]), trained=False)
    commit(made, {CERTIFICATE: (json.dumps(found, indent=1) + "\n").encode()})
    write_card(made, checkpoint.config, card)
