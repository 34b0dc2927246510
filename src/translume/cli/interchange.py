"""translume export, translume import, translume push and translume models"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from translume.cli.options import FILE, FOLDER, MODEL, Compute, json_option, requires, threads_option
from translume.cli.terminal import is_quiet, note, print_json, warn
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.interchange.push import Format
    from translume.interchange.state_dict import Layout

DTYPES = ("float32", "float16", "bfloat16", "int16", "int8")


@click.command(
    "export",
    short_help="Convert a model for another toolkit.",
    epilog="Example: translume export models/en-de ctranslate2 out/ --weights int8",
)
@click.argument("model", type=MODEL)
@click.argument("target")
@click.argument("out", type=FOLDER)
@click.option("--weights", "dtype", type=click.Choice(DTYPES), help="[default: int8 for web, float32 for others]")
@json_option
@threads_option
def export_(model: Path, target: str, out: Path, dtype: str | None, as_json: bool, compute: Compute) -> None:
    """Convert MODEL for TARGET (argos, ctranslate2, huggingface, marian, onnx, translume or web) into the folder OUT.

    The export is loaded, and its forced log-probabilities are compared with the model's. The difference is printed and
    stored in OUT. Features that the target does not support are refused by name. For ctranslate2, `tokenizer.json` (or
    `source.json` and `target.json`) is a tokenizer of the library `tokenizers`. For huggingface, post-norm models
    become MarianMTModel, pre-norm models Pegasus, with AutoTokenizer. For onnx, the folder is what Optimum and
    transformers.js load, and onnx/translate.onnx translates ids by greedy search in ONNX Runtime alone. For marian, the
    model must be one that was imported from Marian. For translume, it is a model folder with weights in another format.
    For web, it is a page that translates in the browser, offline too, from any static host:
    `python -m http.server -d OUT` shows it here.
    """
    from translume.interchange.export import export
    from translume.translator.loading import set_threads

    set_threads(compute.threads)
    certificate = export(model, target, out, dtype=dtype or "")
    if as_json:
        click.echo(json.dumps(certificate.to_dict()))
        return
    click.echo(f"{out}: {target}, {certificate.dtype}; {certificate}")
    if certificate.same_translations is not None:
        click.echo(f"{certificate.same_translations} of {certificate.sentences} greedy translations are the same ids")


@click.command(
    "import",
    short_help="Convert a model of another toolkit.",
    epilog="Example: translume import hf://Helsinki-NLP/opus-mt-en-de models/en-de",
)
@click.argument("source", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option(
    "--positions",
    type=click.Choice(["hf", "marian"]),
    default="hf",
    show_default=True,
    help="Sinusoidal positions as transformers (hf) or Marian computes them.",
)
@click.option(
    "--vocabs",
    type=FILE,
    nargs=2,
    help="Vocabularies of source and target, by default those beside the weights: of Marian, .spm or .yml; of "
    "CTranslate2, SentencePiece models; of fairseq, dict; of Keras, tokens, one a line or a list in JSON; of a state "
    "dict, lists of tokens or objects of ids in JSON; of an EncoderDecoderModel, folders of tokenizers.",
)
@click.option("--revision", help="Branch, tag or commit of a repository of the Hub.")
@click.option("--layout", type=click.Choice(["nn.Transformer", "annotated"]), help="SOURCE is a state dict of PyTorch.")
@click.option("--heads", type=click.IntRange(1), help="Number of attention heads of a state dict.")
@click.option(
    "--specials",
    type=int,
    nargs=4,
    default=(0, 1, 2, 3),
    show_default=True,
    help="Ids in its vocabularies: unknown, padding, begin, end.",
)
@click.option("--set", "overrides", metavar="NAME=VALUE", multiple=True, help="A setting of it, as model.norm=pre.")
@json_option
@threads_option
@requires("--layout", "--heads")
@requires("--layout", "--vocabs")
@requires("--heads", "--layout")
@requires("--specials", "--layout")
@requires("--set", "--layout")
def import_(
    source: Path,
    out: Path,
    positions: Literal["hf", "marian"],
    vocabs: tuple[Path, Path] | None,
    revision: str | None,
    layout: "Layout | None",
    heads: int | None,
    specials: tuple[int, int, int, int],
    overrides: tuple[str, ...],
    as_json: bool,
    compute: Compute,
) -> None:
    """Convert the model of another toolkit in SOURCE to the new model folder OUT.

    SOURCE is a folder or hf://owner/name[@revision], a repository of the Hugging Face Hub (opus:en-de is the one of
    OPUS-MT for these languages). It contains config.json, the weights and a tokenizer: SentencePiece models with their
    vocabularies, or a tokenizer.json. Or SOURCE is a .npz or .bin of Marian, or the folder that holds it with its
    vocabularies and decoder.yml; or a folder of CTranslate2 with a SentencePiece model, or a package of Argos Translate
    (argos:en-de downloads one); or a checkpoint of fairseq, OpenNMT-py, JoeyNMT or Sockeye, or the folder that holds
    it, or one of EOLE; or the .weights.h5 or .keras of a Keras tutorial's model, with --vocabs. OUT is loaded, and its
    forced log-probabilities are compared with those of transformers, or of Marian or CTranslate2 if pymarian or
    ctranslate2 is installed. The difference is printed and stored in OUT. Features that Translume does not support are
    refused by name.

    With --layout, SOURCE is a state dict of torch.nn.Transformer with its embeddings and output layer, as in PyTorch's
    tutorial, or of the Annotated Transformer, alone or under model_state_dict, state_dict or model. It needs --heads
    and --vocabs; --set names what else the file does not say. It is compared with a plain forward in PyTorch.
    """
    from translume.checkpoint import is_hub
    from translume.checkpoint.folder import repository_name
    from translume.interchange.importing import import_model
    from translume.interchange.state_dict import StateDict
    from translume.translator.loading import set_threads

    set_threads(compute.threads)
    if revision is not None:
        name = repository_name(source) if is_hub(source) else str(source)
        if not is_hub(source) or "@" in name:
            raise SettingsError(f"--revision {revision}: found {name}, expected hf://owner/name without a revision")
        source = Path(f"{name}@{revision}")
    read = layout and StateDict(layout=layout, heads=heads or 0, specials=specials, overrides=overrides)
    imported = import_model(source, out, positions=positions, vocabularies=vocabs or (), layout=read)
    if as_json:
        click.echo(json.dumps(imported.to_dict()))
        return
    for line in imported.notes:
        warn(f"Note: {line}")
    click.echo(f"{out}: {imported.certificate or 'written'}")


@click.command(
    "push",
    short_help="Upload a model to the Hugging Face Hub.",
    epilog="Example: translume push models/en-de me/en-de --dry-run",
)
@click.argument("model", type=MODEL)
@click.argument("repository", metavar="OWNER/NAME")
@click.option(
    "--format",
    type=click.Choice(["translume", "huggingface", "onnx", "ctranslate2"]),
    default="translume",
    show_default=True,
    help="The model folder, or an export of it.",
)
@click.option("--private", is_flag=True, help="Create a private repository. An existing one stays as it is.")
@click.option("--dry-run", is_flag=True, help="Print the files and the model card instead of uploading them.")
@json_option
def push_(model: Path, repository: str, format: "Format", private: bool, dry_run: bool, as_json: bool) -> None:
    """Upload MODEL and its model card to OWNER/NAME, which is created if it is new.

    The token is read from HF_TOKEN, or is that of `hf auth login`. The files of `resume/`, the log and the folders of
    training files are not uploaded. Afterwards, hf://OWNER/NAME names the model in every command.
    """
    from translume.interchange.push import push

    pushed = push(model, repository, format=format, private=private, dry_run=dry_run, progress=not is_quiet())
    for line in pushed.notes:
        warn(f"Note: {line}")
    if as_json:
        click.echo(json.dumps(pushed.to_dict(), ensure_ascii=False))
    elif dry_run:
        for name, size in pushed.files.items():
            click.echo(f"{size:>15,}  {name}")
        click.echo(f"{sum(pushed.files.values()):>15,}  bytes to {pushed.address}\n\n{pushed.card.rstrip()}")
    else:
        click.echo(
            f"{pushed.address}: {len(pushed.files)} files, {sum(pushed.files.values()):,} bytes, {pushed.commit}"
        )


@click.command("models", short_help="List public models.", epilog="Example: translume models --from de --to en")
@click.option("--task", default="", help="Such as translation or summarization.")
@click.option("--from", "source", default="", metavar="LANGUAGE", help="Code of the language of sources, such as de.")
@click.option("--to", "target", default="", metavar="LANGUAGE", help="Code of the language of targets.")
@json_option
def models(task: str, source: str, target: str, as_json: bool) -> None:
    """Print names of public models, which every command takes as MODEL, with languages, size and licence.

    The list comes with Translume and is short. Each row is what a page said when it was read; --json has the page and
    the date. A model of many languages is listed for each language.
    """
    from translume.interchange.public_models import public_models

    known = public_models(task, source, target)
    if as_json:
        for model in known:
            print_json(model)
        return
    if not known:
        note("no model of the list; others are at https://huggingface.co/models")
    rows = [
        (each.name, each.task, each.languages or f"{each.source}→{each.target}", each.size, each.licence)
        for each in known
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(map(str.ljust, row, widths)).rstrip())
