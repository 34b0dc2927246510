"""Import a model of another toolkit into a model folder, and compare it with the original where that is possible."""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from safetensors import SafetensorError

from translume.atomic import make_folder, sync, sync_all
from translume.checkpoint import Card, Checkpoint, commit, is_hub, load_checkpoint, save_model, write_card
from translume.checkpoint.folder import hub_function, is_remote, package_file, repository_name
from translume.checkpoint.model_card import UNKNOWN_LICENCE, licence_of
from translume.errors import ModelFolderError, TranslumeError, check_known, needed_by, suggest_keywords
from translume.interchange.certificate import Certificate, DifferenceError
from translume.interchange.ctranslate2_binary import is_ctranslate2, needs_import
from translume.interchange.marian import is_marian
from translume.interchange.toolkits import is_toolkit
from translume.json_values import JsonValue

if TYPE_CHECKING:
    from translume.interchange.state_dict import StateDict

CERTIFICATE = "import.json"
Sinusoids = Literal["hf", "marian"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported(JsonValue):
    """The result of an import.

    certificate: how far the reloaded model is from the original; None for a Marian model if pymarian is not installed.
    notes: one line for each thing left out.
    """

    certificate: Certificate | None
    notes: tuple[str, ...]


@suggest_keywords
def import_model(
    source: Path | str, folder: Path | str, *, positions: Sinusoids = "hf", vocabularies: Sequence[Path | str] = (),
    layout: "StateDict | None" = None,
) -> Imported:  # fmt: skip
    """Import a model of another toolkit, or a state dict of PyTorch, into the new model folder `folder`.

    source: a folder as transformers saves it, or hf://owner/name[@revision] or opus:en-de, a repository of the Hugging
    Face Hub, or argos:en-de, a package of Argos Translate; or weights of Marian (.npz or .bin), or a folder with one
    such file; or a checkpoint of fairseq, OpenNMT-py, JoeyNMT or Sockeye, or a folder with one or of EOLE; or weights
    of Keras.
    positions: "hf" for the sinusoids of transformers, "marian" for those that Marian trained an OPUS model with.
    vocabularies: for Marian and fairseq, the vocabularies of source and target; by default found beside the weights.
        For Keras, tokens, one a line or a list in JSON.
        For a state dict, lists of tokens or objects of ids in JSON. For an EncoderDecoderModel of transformers, folders
        of the tokenizers of encoder and decoder.
    layout: what a file of PyTorch does not say about its state dict.
    Raises SettingsError naming what cannot be expressed, ModelFolderError or DataError for missing or damaged files,
    TranslumeError if `folder` is not empty or the two models differ too much. Then nothing is written.
    """
    check_known("positions", positions, get_args(Sinusoids))
    paths = [Path(each) for each in vocabularies]
    if layout is not None:
        return import_folder(Path(source), Path(folder), positions, Path(source).name, paths, layout)
    if is_hub(source):
        imported: Imported = hub_function("import_repository")(repository_name(source), Path(folder), positions, paths)
        return imported
    source = package_file(source) if is_remote(source) else source
    return import_folder(Path(source), Path(folder), positions, Path(source).resolve().name, paths)


def import_folder(
    source: Path,
    folder: Path,
    positions: Sinusoids,
    origin: str,
    vocabularies: Sequence[Path] = (),
    layout: "StateDict | None" = None,
    *,
    compare: bool = True,
) -> Imported:
    """Import a folder or file as `import_model` does.

    origin: the name of the model on the model card.  compare: whether to compare the result with the original.
    """
    if not source.exists():
        raise ModelFolderError(f"{source}: no such folder, expected one as transformers saves it, or a .npz of Marian")

    require_new(folder)
    with ExitStack() as stack, new_folder(folder) as unfinished:
        original = _original(source, positions, vocabularies, layout, stack)
        if not compare:
            original = replace(original, compare=None, notes=(*original.notes, "not compared with the original"))
        original.save(unfinished)
        saved = load_checkpoint(unfinished, device="cpu", dtype="fp32")
        config, parameters = saved.config, saved.parameters
        try:
            certificate = original.compare(saved) if original.compare else None
        except DifferenceError as error:  # of roundings alone, if both agree in double precision
            if original.compare is None or original.toolkit == "Marian":
                raise
            saved = load_checkpoint(unfinished, device="cpu", dtype="fp32")
            saved.model.double()
            certificate = original.compare(saved)
            original = replace(original, notes=(*original.notes, f"compared in double precision: in single, {error}"))
        stored = {"source": origin, **(asdict(certificate) if certificate else {}), "notes": list(original.notes)}
        commit(unfinished, {CERTIFICATE: (json.dumps(stored, indent=1) + "\n").encode()})
        line = f"imported from {origin} of {original.toolkit}" + (f"; {certificate}" if certificate else "")
        data = "\n".join([line, *original.notes])
        write_card(
            unfinished, config, Card(parameters=parameters, data=data, licence=_licence_of(source), trained=False)
        )
    return Imported(certificate=certificate, notes=original.notes)


def require_new(folder: Path) -> None:
    """Raise TranslumeError if `folder` exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TranslumeError(f"{folder}: already exists, expected a new or empty folder")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a path beside `folder` to write to, which is renamed to `folder` at the end, or removed after an error.

    Raises TranslumeError if it cannot be written.
    """
    try:
        make_folder(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as around:
            unfinished = Path(around) / folder.name  # the model card has the name of its folder
            yield unfinished
            sync_all(unfinished)
            unfinished.replace(folder)
            with suppress(OSError):  # the folder is in its place
                sync(folder.parent)
    except OSError as error:
        raise TranslumeError(f"{folder}: cannot be written: {error.strerror or error}") from None
    except SafetensorError as error:  # a full disk, found by the library that writes the weights
        raise TranslumeError(f"{folder}: cannot be written: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Original:
    """A model that was read.

    toolkit: its name on the model card.  save: writes the model folder, and frees the memory of the model.
    compare: compares the saved checkpoint with the original, if that is possible.
    """

    toolkit: str
    save: Callable[[Path], None]
    notes: tuple[str, ...]
    compare: Callable[[Checkpoint], Certificate] | None


def _original(
    source: Path, positions: Sinusoids, vocabularies: Sequence[Path], layout: "StateDict | None", stack: ExitStack
) -> _Original:
    """Read the model in a file or folder.  stack: removes what was unpacked."""
    if layout is not None:
        state = layout.read(source, vocabularies)
        save = partial(_save, state.checkpoint)
        return _Original(toolkit="PyTorch", save=save, notes=state.notes, compare=state.compare)
    if is_toolkit(source):
        foreign = _imported("toolkits.reader", "read_toolkit")(source, vocabularies)
        notes = (*foreign.notes, f"not compared with {foreign.toolkit}, which is not run here")
        save = partial(_save, foreign.checkpoint())
        return _Original(toolkit=foreign.toolkit, save=save, notes=notes, compare=None)
    if needs_import(source):
        read, notes = partial(_imported("ctranslate2_reader", "read_ctranslate2"), sentences=vocabularies), ()
        if is_ctranslate2(source):
            model = read(source)
        else:
            package = stack.enter_context(_imported("argos", "opened")(source))
            model, notes = read(package.folder, data=package.data, search=_imported("argos", "SEARCH")), package.notes
        compare, reason = _imported("ctranslate2_reader", "comparison")(model)
        notes += model.notes if compare else (*model.notes, f"not compared with CTranslate2: {reason}")
        return _Original(toolkit="CTranslate2", save=model.save, notes=notes, compare=compare)
    if is_marian(source):
        model = _imported("marian.reader", "read_marian")(source, vocabularies)
        compare, reason = _imported("marian.writer", "comparison")(model)
        notes = model.notes if compare else (*model.notes, f"not compared with Marian: {reason}")
        return _Original(toolkit="Marian", save=partial(_save, model.checkpoint), notes=notes, compare=compare)
    if not source.is_dir():
        raise ModelFolderError(f"{source}: not a folder, expected one as transformers saves it, or a .npz of Marian")
    compare_folder = _imported("huggingface.compare", "compare_with_huggingface")
    model = _imported("huggingface.reader", "read_huggingface")(source, positions, vocabularies)
    return _Original(
        toolkit="transformers",
        save=partial(_save, model.checkpoint),
        notes=model.notes,
        compare=lambda checkpoint: compare_folder(checkpoint, source, vocabularies),
    )


def _save(checkpoint: Checkpoint, folder: Path) -> None:
    from translume.checkpoint import free  # needs torch, which other imports may not

    save_model(folder, checkpoint)
    free(checkpoint.model)


def _imported(module: str, name: str) -> Any:
    """Return a function of a module that needs the extra `export`."""
    with needed_by("import"):
        return getattr(import_module(f"translume.interchange.{module}"), name)


def _licence_of(source: Path) -> str:
    """Return the licence that README.md or config.json of an original state; empty if neither does."""
    folder = source if source.is_dir() else source.parent
    if (licence := licence_of(folder)) != UNKNOWN_LICENCE:
        return licence
    try:
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("license")
    except (OSError, ValueError, AttributeError):
        return ""
    return stated if isinstance(stated, str) and stated.isprintable() else ""
