"""Import a model of transformers into a model folder, and compare it with the original."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from translume.atomic import make_folder
from translume.checkpoint import Card, commit, free, load_checkpoint, save_model, write_card
from translume.checkpoint.source import hub_function, is_hub, repository_name
from translume.errors import ModelFolderError, SettingsError, TranslumeError, nearest, suggest_keywords
from translume.interchange.certificate import Certificate
from translume.interchange.huggingface.reader import ForeignModel, Sinusoids, read_huggingface

CERTIFICATE = "import.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import.

    certificate: how far the reloaded model is from the original.  notes: one line for each thing left out.
    """

    certificate: Certificate
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {"certificate": self.certificate.to_dict(), "notes": list(self.notes)}


@suggest_keywords
def import_model(source: Path | str, folder: Path | str, *, positions: Sinusoids = "hf") -> Imported:
    """Import the model of transformers in `source` into the new model folder `folder`.

    source: a folder as transformers saves it, or hf://owner/name[@revision], a repository of the Hugging Face Hub.
    positions: "hf" for the sinusoids of transformers, "marian" for those that Marian trained an OPUS model with.
    Raises SettingsError naming what cannot be expressed, ModelFolderError or DataError for missing or damaged files,
    TranslumeError if `folder` is not empty or the two models differ too much. Then nothing is written.
    """
    if positions not in get_args(Sinusoids):
        raise SettingsError(f"positions: found {positions!r}{nearest(positions, get_args(Sinusoids))}")
    if is_hub(source):
        found: Imported = hub_function("import_repository")(repository_name(source), Path(folder), positions)
        return found
    return import_folder(Path(source), Path(folder), positions, Path(source).resolve().name)


def import_folder(source: Path, folder: Path, positions: Sinusoids, origin: str) -> Imported:
    """Import a folder as `import_model` does.  origin: the name of the model on the model card."""
    if not source.is_dir():
        raise ModelFolderError(f"{source}: no such folder, expected one as transformers saves it")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TranslumeError(f"{folder}: already exists, expected a new or empty folder")
    compare = _comparison()
    foreign = read_huggingface(source, positions)
    try:
        make_folder(folder.parent)
        around = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        made = around / folder.name  # the card has the name of its folder
        save_model(made, foreign.checkpoint)
        free(foreign.checkpoint.model)
        certificate = compare(load_checkpoint(made, device="cpu", dtype="fp32"), source)
        _certify(made, origin, foreign, certificate)
        made.replace(folder)
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(around, ignore_errors=True)
    return Imported(certificate=certificate, notes=foreign.notes)


def _comparison() -> Callable[..., Certificate]:
    try:
        compare: Callable[..., Certificate] = import_module(
            "translume.interchange.huggingface.compare"
        ).compare_with_huggingface
    except ModuleNotFoundError as error:
        raise SettingsError(f"import: {error.name} is not installed; pip install 'translume[export]'") from None
    return compare


def _certify(made: Path, origin: str, foreign: ForeignModel, certificate: Certificate) -> None:
    """Add the certificate to the model folder and to its model card."""
    checkpoint = foreign.checkpoint
    found = {"source": origin, **asdict(certificate), "notes": list(foreign.notes)}
    line = (
        f"imported from {found['source']} of transformers; {certificate.tokens} tokens of {certificate.sentences} "
        f"random sentences differ by at most {certificate.difference:.2g} nats, "
        f"{certificate.mean_difference:.2g} on average"
    )
    parameters = sum(tensor.numel() for tensor in checkpoint.model.parameters())
    card = Card(parameters=parameters, data="\n".join([line, *foreign.notes]), trained=False)
    commit(made, {CERTIFICATE: (json.dumps(found, indent=1) + "\n").encode()})
    write_card(made, checkpoint.config, card)
