"""translume show, translume pack, translume config"""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.cli.options import FILE, MODEL, decoding_options, excludes, json_option, set_option
from translume.cli.terminal import ProgressBar, note, print_json
from translume.errors import DataError, SettingsError
from translume.lazy import is_installed
from translume.tasks import task_of

if TYPE_CHECKING:
    from translume.config import Config, DataSettings
    from translume.engine.packing import Dtype


@click.command(
    "show",
    short_help="Show what a model is: size, data, scores, settings, curves.",
    epilog="Example: translume show models/en-de --plot curves.png",
)
@click.argument("model", type=MODEL)
@click.option("--plot", type=FILE, help="Draw loss, nll, metric and learning rate (.png, .svg, .pdf).")
@click.option("--settings", is_flag=True, help="Print all settings instead, as TOML.")
@click.option("--data", is_flag=True, help="Print the training files instead: digests, counts, drops.")
@click.option(
    "--engine", is_flag=True, help="Probe the fast engine on this machine instead: its packings, times and accuracy."
)
@json_option
@excludes("--settings", "--data", "--engine")
@excludes("--engine", "--data", "--plot")
def command(model: Path, plot: Path | None, settings: bool, data: bool, engine: bool, as_json: bool) -> None:
    """Print what a model is: kind, size, vocabulary, training data, scores.

    --settings and --data print these parts in full. --json prints everything.
    """
    if engine:
        report = _engine_report(model)
        print_json(report) if as_json else _print_engine_report(report)
        return
    from translume.checkpoint import data_of_history, read_config, read_history, read_vocabularies
    from translume.checkpoint.model_card import licence_of

    config = read_config(model)
    history = read_history(model)
    source, target = read_vocabularies(model)
    facts: dict[str, Any] = {
        "model": str(model),
        "size": _size(model),
        "vocabulary": {"source": len(source), "target": len(target), "shared": source is target},
        "licence": licence_of(model),
        "data": data_of_history(history),
        "training": _training(history),
        "scores": [record for record in history if record.get("event") == "evaluated"],
        "settings": config.model_dump(mode="json"),
    }
    if plot is not None:
        from translume.inspection.figures import draw_curves

        draw_curves(history, plot, title=str(model))
        note(f"{plot}: written")
    if as_json:
        print_json(facts)
    elif settings:
        click.echo(config.to_toml(), nl=False)
    elif data:
        _print_data(facts["data"], config.data)
    else:
        _print(facts, config)


def _size(model: Path) -> dict[str, Any]:
    """Return the numbers of parameters and bytes, and when the folder was last committed."""
    from translume.checkpoint import Manifest, read_config
    from translume.checkpoint.arrays import map_arrays
    from translume.checkpoint.loading import WEIGHTS, count_parameters

    manifest = Manifest.read(model)
    weights, parameters = manifest.files.get(WEIGHTS), None
    if weights is not None:
        parameters = count_parameters(map_arrays(model / weights.file), read_config(model, manifest))
    needed = manifest.without_resume().files
    resuming = [entry for name, entry in manifest.files.items() if name not in needed and (model / entry.file).exists()]
    changed = max((model / entry.file).stat().st_mtime for entry in needed.values())
    return {
        "parameters": parameters,
        "bytes": sum(entry.size for entry in needed.values()),
        "bytes_to_resume": sum(entry.size for entry in resuming),
        "committed": datetime.fromtimestamp(changed).isoformat(" ", "seconds"),
    }


def _training(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far training came, how long it took, and its validation results."""
    validated = [record for record in history if record.get("event") == "validated"]
    best = [record for record in validated if record.get("best")]
    # The last one: a finished run may have been continued with more updates.
    states = [record for record in history if record.get("event") in ("progress", "interrupted", "finished")]
    final = states[-1] if states else {}
    started = [record for record in history if record.get("event") == "started"]
    return {
        "update": final.get("update"),
        "finished": final.get("event") == "finished",
        "kept": final.get("kept"),
        "seconds": max((record.get("elapsed", 0.0) for record in history), default=0.0),
        "trained_parameters": started[-1].get("trained_parameters") if started else None,
        "best": best[-1] if best else None,
        "last": validated[-1] if validated else None,
    }


def _print(facts: dict[str, Any], config: "Config") -> None:
    """Print the summary."""
    from translume.checkpoint.history import files_of
    from translume.checkpoint.model_card import UNKNOWN_LICENCE, CardWords, describe_adapters
    from translume.cli.terminal import span

    size, vocabulary, training, task = facts["size"], facts["vocabulary"], facts["training"], task_of(config)
    words: CardWords = task.describe_model(config)
    settings = config.model
    click.echo(f"{facts['model']}: {words.kind}")
    resume = f", and {size['bytes_to_resume'] / 1e6:.1f} MB for resuming" if size["bytes_to_resume"] else ""
    parameters = "no weights yet" if size["parameters"] is None else f"{size['parameters']:,} parameters"
    click.echo(f"size: {parameters}, {size['bytes'] / 1e6:.1f} MB{resume}")
    click.echo(
        f"model: {words.layers} layers, width {settings.width}, feed-forward {settings.feed_forward}, "
        f"{settings.attention_heads} attention heads, {settings.head.kind} head"
    )
    sizes = task.describe_vocabulary(vocabulary["source"], vocabulary["target"], shared=vocabulary["shared"])
    click.echo(f"vocabulary: {sizes}")
    if task.predicts == "tokens":
        click.echo(f"decoding: strategy {config.decoding.strategy}")
    if facts["licence"] != UNKNOWN_LICENCE:
        click.echo(f"licence: {facts['licence']}")
    _print_accounts(facts["data"])
    if training["update"] is not None:
        state = "finished" if training["finished"] else "not finished"
        kept = f"; kept {training['kept']}" if training["kept"] else ""
        click.echo(f"training: {training['update']:,} updates in {span(training['seconds'])}, {state}{kept}")
    if config.training.lora_rank:
        base = (facts["data"].get("base") or {}).get("model", "unknown")
        click.echo(f"adapted: {base} by {describe_adapters(config, training['trained_parameters'] or 0)}")
    for name in ("best", "last"):
        record = training[name]
        if record is not None:
            metrics = "".join(f", {metric} {value:.2f}" for metric, value in record.get("metrics", {}).items())
            measure = record.get("measure", "nll")
            click.echo(f"{name} validation: {measure} {record['nll']:.3f}{metrics} at update {record['update']:,}")
    for record in facts["scores"]:
        click.echo(f"scores on {', '.join(files_of(record))}:")
        for score in record.get("scores", []):
            click.echo(f"  {score['title']}|{score['signature']} = {score['value']:.2f}")
    click.echo(f"committed: {size['committed']}")


def _print_accounts(data: dict[str, Any], *, reasons: bool = False) -> None:
    """Print how many pairs were read, used and dropped; with `reasons`, why, with an example of each."""
    from translume.data.cleaning import Account

    for name in ("training", "validation"):
        if not (account := data.get(name)):
            continue
        if account["held_out"] and name == "validation":  # its account is that of the training data
            click.echo(f"validation data: {account['held_out']:,} held out of the training data")
        else:
            lines = Account.from_dict(account).summary(examples=reasons).splitlines()
            click.echo(f"{name} data: " + "\n".join(lines if reasons else lines[:1]))


def _print_data(data: dict[str, Any], settings: "DataSettings | None") -> None:
    """Print what a model was trained on, and what its base model was.  settings: None for those of a base model."""
    _print_accounts(data, reasons=True)
    for split, name in (("train", "training"), ("valid", "validation")):
        if files := [file for file in data.get("files") or () if file["split"] == split]:
            click.echo(f"{name} files (BLAKE2b-128 as of `b2sum -l 128`, bytes, pairs used):")
            for file in files:
                weight = "" if file["weight"] == 1 else f"  weight {file['weight']:g}"
                pairs = "streamed" if file["pairs"] is None else f"{file['pairs']:,}"
                click.echo(f"  {file['digest']:>32}  {file['size']:>13,}  {pairs:>11}  {file['path']}{weight}")
    if not data.get("files") and settings is not None:
        from translume.data.pairs import origins

        click.echo("files, whose digests were not stored:")
        for origin in (*origins(settings, "train"), *origins(settings, "valid")):
            click.echo(f"  {' '.join(origin.files)}")
    elif not data.get("files"):
        click.echo("files: not stored")
    if base := data.get("base"):
        click.echo(f"\nbase model {base['model']} (SHA-256 of its weights: {base['weights_sha256']}):")
        _print_data(base, None)


def _engine_report(model: Path) -> dict[str, Any]:
    """Return what computes a search with a model on this machine and on a GPU, and self-tests of the engine by dtype.

    plain_parts: what the plain model computes beside an engine.  reason: of a dtype that has none.
    packed_file: what the packed weights were read from; None if they were packed now.
    on_gpus and the self-tests are left out where torch is not installed, on_gpus also for a classifier, whose engine is
    in fp32.
    """
    from translume.checkpoint import load_any
    from translume.engine import ClassEngine, Engine, EngineError, self_test
    from translume.engine.packing import LINEAR
    from translume.kernels.loading import NativeError, describe_kernels
    from translume.translator.loading import engine_of, network_of
    from translume.translator.search import describe_device_search

    checkpoint = load_any(model, device="cpu", dtype="fp32")
    searches = task_of(checkpoint.config).user_class().has_engine
    compared = is_installed()
    report: dict[str, Any] = {"model": str(model), "kernels": describe_kernels(), "plain_parts": []}
    if compared and searches:
        report["on_gpus"] = describe_device_search(checkpoint, checkpoint.config.decoding)
    report["dtypes"] = {}
    for dtype in LINEAR if searches else (ClassEngine.dtype,):
        # A packed file is read only for a network that is not built, as self-tests build it.
        unbuilt = load_any(model, device="cpu", dtype="fp32")
        try:
            engine = engine_of(unbuilt, dtype, pack=False) if searches else ClassEngine(network_of(unbuilt))
        except (EngineError, NativeError) as error:
            report["dtypes"][dtype] = {"reason": str(error)}
            continue
        facts: dict[str, Any] = {}
        if isinstance(engine, Engine):
            report["plain_parts"] = engine.plain_parts
            facts["packed_file"] = None if engine.packed_file is None else str(engine.packed_file)
        report["dtypes"][dtype] = facts | (asdict(self_test(engine, checkpoint.model)) if compared else {})
    return report


def _print_engine_report(report: dict[str, Any]) -> None:
    click.echo(f"{report['model']}\nkernels: {report['kernels']}")
    for part in report["plain_parts"]:
        click.echo(f"the plain model computes {part}")
    if "on_gpus" in report:
        click.echo(f"on a GPU: {report['on_gpus']}")
    for dtype, facts in report["dtypes"].items():
        if "reason" in facts:
            click.echo(f"{dtype}: the plain model is used; {facts['reason']}")
            continue
        path = facts.get("packed_file", "")  # a classifier has none
        packed = f"packed in {path}" if path else "packed at each start" + (" (translume pack)" if path is None else "")
        if "agrees" not in facts:
            compared = "not compared with the plain model, for which torch is not installed"
            click.echo(f"{dtype}: {compared}; {packed}")
            continue
        agrees = "agrees with" if facts["agrees"] else "DISAGREES with"
        same = "identical bit for bit" if facts["alone_equals_batched"] else "not identical bit for bit"
        nats = f"by at most {facts['difference']:.1e} nats"
        click.echo(f"{dtype}: {agrees} the plain model, {nats}; alone and batched {same}; {packed}")


@click.command(
    "pack",
    short_help="Keep packed weights beside a model, for a fast start.",
    epilog="Example: translume pack models/en-de --dtype int8",
)
@click.argument("model", type=MODEL)
@click.option(
    "--dtype",
    "dtypes",
    type=click.Choice(["fp32", "bf16", "int8"]),
    multiple=True,
    default=["fp32"],
    show_default=True,
    help="As of translate; may be given several times.",
)
@click.option(
    "--draft",
    type=MODEL,
    help="Measure a small model that guesses tokens; keep it if it pays.",
)
@click.option("--lines", type=FILE, help="Texts to measure it on, one a line.")
def pack(model: Path, dtypes: tuple["Dtype", ...], draft: Path | None, lines: Path | None) -> None:
    """Write the weights of MODEL as the fast engine reads them on this machine, beside its weights.

    Each later start maps the file instead of packing the weights again. With --draft, greedy search is measured with a
    model of the same vocabularies, on each line alone; decoding.draft is set if it is faster.
    """
    from translume.checkpoint import load_any
    from translume.translator.loading import engine_of

    if (draft is None) != (lines is None):
        raise SettingsError("--draft and --lines: found only one of them, expected both")
    if draft is not None and lines is not None:
        _measure_draft(model, draft, lines, dtypes[0])
    checkpoint = load_any(model)
    if not (task := task_of(checkpoint.config)).user_class().has_engine:
        raise SettingsError(f"{model}: is a {task.model}, expected a translator or a language model")
    for dtype in dtypes:
        path = engine_of(checkpoint, dtype, pack=True).packed_file
        assert path is not None
        click.echo(f"{path}: {path.stat().st_size:,} bytes")


def _measure_draft(model: Path, draft: Path, lines: Path, dtype: "Dtype") -> None:
    from translume.data.lines import read_lines
    from translume.translator.draft import choose_draft, measure_draft
    from translume.translator.loading import ComputeOptions

    texts = [line for line in read_lines(str(lines)) if line.strip()]
    if not texts:
        raise DataError(f"{lines}: found no text, expected one a line")
    options = ComputeOptions(engine="fast", device="cpu", dtype=dtype, threads=1)
    with ProgressBar("measuring", unit="lines") as bar:
        seconds = measure_draft(model, draft, texts, options, bar.update)
    for count, measured in seconds.items():
        what = f"{count} tokens guessed" if count else "no draft"
        click.echo(f"{what}: {1000 * measured / len(texts):.2f} ms a line, {seconds[0] / measured:.2f} times as fast")
    best = choose_draft(model, draft, seconds)
    note(f"{model}: decoding.draft_tokens = {best}" if best else f"{model}: not changed, since the draft does not pay")


@click.command(
    "config",
    short_help="Print every setting that a run would use.",
    epilog="Example: translume config en-de.toml --set model.width=128",
)
@click.argument("file", type=FILE)
@click.option("--comments/--no-comments", default=True, help="Explain each setting.  [default: comments]")
@decoding_options
@json_option
@set_option
def config(file: Path, comments: bool, as_json: bool, overrides: tuple[str, ...]) -> None:
    """Print every setting that a run with FILE (a TOML file or a model folder) would use."""
    from translume.config import Config

    if file.is_dir():
        from translume.checkpoint import read_config

        settings = read_config(file).change(*overrides)
    else:
        settings = Config.read(file, overrides)
    if as_json:
        print_json(settings)
    else:
        click.echo(settings.to_toml(comments=comments), nl=False)
