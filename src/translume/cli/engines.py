"""Which engine a verb translates with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from translume.cli.options import FOLDER, Command, Compute
from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import DecodingSettings
    from translume.decoding import Average
    from translume.translator import Translation, Translator
    from translume.translator.engines import Computing

_ENGINE = "translume.engine"

Constraints = Iterable[Iterable[str]] | None
"""What each text's target must hold; None for nothing."""


def _remember(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    ctx.meta[_ENGINE] = value


engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "fast", "plain"]),
    default="auto",
    show_default=True,
    expose_value=False,
    callback=_remember,
    help="What steps: weights packed for this machine, or the plain model. auto: fast where its self-test passes.",
)
"""--engine, read back with `engine`."""


workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes that share the lines, each on one CPU thread.  [default: 1, and all cores after some seconds]",
)
"""--workers"""


def ensemble_options(command: Command) -> Command:
    """--ensemble (`others`) and --average."""
    another = click.option(
        "--ensemble",
        "others",
        type=FOLDER,
        multiple=True,
        help="Another model with the same tokenizers, to average beliefs with; more of them with more --ensemble.",
    )
    average = click.option(
        "--average",
        type=click.Choice(["probability", "log_probability"]),
        help="What an ensemble averages.  [default: probability]",
    )
    return another(average(command))


def ensemble_at(
    model: Path, others: Sequence[Path], average: "Average | None", where: Compute, name: str
) -> "Translator":
    """The translator of a folder, or the ensemble of it and others; see `translator_at`."""
    translator = translator_at(model, where, name)
    if others:
        rest = [translator_at(other, where, name) for other in others]
        return translator.ensemble_with(*rest, average=average or "probability")
    if average is not None:
        raise SettingsError(f"--average {average}: wanted --ensemble with it, a model to average with")
    return translator


@contextmanager
def translating(
    model: Path, translator: "Translator", count: int | None
) -> Iterator[Callable[[Iterable[str], "DecodingSettings", "Constraints"], Iterator["Translation"]]]:
    """What translates texts: the translator itself, or `count` processes with the same model and engine.

    None: the translator, and as many processes as it has threads once the work is long.
    """
    from translume.translator import Workers, translate_with_workers

    several = count is not None and count > 1
    if several and len(translator.models) > 1:
        raise SettingsError(f"workers: found {count} with --ensemble, wanted 1")
    weight = next(translator.checkpoint.model.parameters())
    device = weight.device
    if several and device.type != "cpu":
        raise SettingsError(f"workers: found {count} on {device}, wanted 1; several are for the CPU")
    dtype = translator.engine.dtype if translator.engine else None
    begin = partial(Workers, model, dtype=dtype, plain="bf16" if weight.element_size() < 4 else "fp32")
    if count is not None and count > 1:
        with begin(count) as workers:
            yield workers.translate_all
        return
    threads = 1 if device.type != "cpu" else torch_threads()
    if count == 1 or threads == 1 or len(translator.models) > 1:
        yield lambda texts, settings, wanted: translator.translate_all(texts, settings=settings, constraints=wanted)
        return
    start = partial(begin, threads)
    yield lambda texts, settings, wanted: translate_with_workers(translator, start, texts, settings, wanted)


def torch_threads() -> int:
    """The threads that torch may use, --threads or all cores."""
    import torch

    return torch.get_num_threads()


def engine() -> str:
    """What the running verb was told by --engine."""
    return str(click.get_current_context().meta.get(_ENGINE, "auto"))


def translator_at(model: Path, where: Compute, name: str) -> "Translator":
    """The translator of a folder as --engine (`name`), --device, --dtype and --threads want it."""
    from translume.translator.engines import translator_in

    return translator_in(model, computing(where, name))


def computing(where: Compute, name: str) -> "Computing":
    """How a model computes that --engine (`name`), --device, --dtype and --threads were told of."""
    from translume.translator.engines import Computing, EngineName

    return Computing(engine=cast(EngineName, name), device=where.device, dtype=where.dtype, threads=where.threads)


def findings(model: Path) -> dict[str, Any]:
    """What the probe and the self-test of the engine find for a model on this machine, a dtype each.

    What is packed and tested is what the other verbs use, which an earlier probe may have chosen; the times are of a
    probe made now.
    """
    import torch

    from translume.engine import Choice, Engine, build_engine, self_test
    from translume.engine.probe import CANDIDATES
    from translume.translator import load_translator

    network = load_translator(model, device="cpu", dtype="fp32").checkpoint.model
    found: dict[str, Any] = {"model": str(model), "threads": torch.get_num_threads(), "dtypes": {}}
    for dtype in CANDIDATES:
        engine, probed = build_engine(network, dtype), Engine(network, Choice(dtype)).choice
        found["dtypes"][dtype] = {
            "packed": {shape: engine.choice.kinds[shape] for shape in probed.kinds},
            "microseconds": probed.microseconds,
            **self_test(engine, network).to_dict(),
        }
    return found


def print_findings(found: dict[str, Any]) -> None:
    """The findings as people read them."""
    from translume.engine.probe import ROWS

    rows = ", ".join(map(str, ROWS))
    click.echo(f"{found['model']} on {found['threads']} thread(s); µs a product of {rows} rows")
    for dtype, facts in found["dtypes"].items():
        sound = "agrees with" if facts["agrees"] else "DISAGREES with"
        same = "the same bit for bit" if facts["alone_equals_batched"] else "not the same bit for bit"
        click.echo(
            f"\n{dtype}: {sound} the plain model, by at most {facts['difference']:.1e} nats; alone and batched {same}"
        )
        for shape, kind in facts["packed"].items():
            times = facts["microseconds"].get(shape, {})
            each = "; ".join(f"{name} {', '.join(f'{time:.0f}' for time in took)}" for name, took in times.items())
            click.echo(f"  {shape:>12}  {kind:12} {each}".rstrip())
