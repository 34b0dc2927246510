"""Options that several verbs share; what they hold is asked for by name, not passed one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from translume.errors import SettingsError

if TYPE_CHECKING:
    from translume.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

Dtype = Literal["auto", "fp32", "bf16", "int8"]

_SET, _DECODING, _COMPUTE = "translume.set", "translume.decoding", "translume.compute"
_EVALUATION, _CALIBRATION = "translume.evaluation", "translume.calibration"

FILE = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path)
FOLDER.name = "directory"  # as --help calls it
"""What is not there or of the wrong kind is said by whoever reads it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where and how a verb computes. threads None: as many as the machine has."""

    device: str = "auto"
    dtype: Dtype = "auto"
    threads: int | None = None

    @property
    def plain_dtype(self) -> Literal["auto", "fp32", "bf16"]:
        """The dtype for a verb that has no engine; SettingsError if it is one that only an engine has."""
        from translume.translator.engines import Computing

        return Computing(dtype=self.dtype).plain_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate:
    """What to do about calibration. picture: where to draw it; "-" is nowhere, None measures nothing."""

    picture: Path | None = None
    fit: bool = False


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and value != ():
            ctx.meta.setdefault(key, {})[parameter.name] = value

    return keep


def _all(options: list[Callable[[Command], Command]]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class _StrategyOption(click.Option):
    """Names the strategies there are, when someone asks: to know them, settings must be imported."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from translume.config.decoding import STRATEGIES

        record = super().get_help_record(ctx)
        return record and (record[0], f"{', '.join(sorted(STRATEGIES))}: {record[1]}")


def _option(
    key: str,
    *names: str,
    type: Any = None,
    multiple: bool = False,
    help: str,
    metavar: str | None = None,
    cls: type[click.Option] = click.Option,
) -> Callable[[Command], Command]:
    return click.option(
        *names,
        cls=cls,
        type=type,
        multiple=multiple,
        default=None,
        expose_value=False,
        callback=_remember(key),
        help=help,
        metavar=metavar,
    )


set_option = _option(
    _SET, "--set", multiple=True, metavar="PATH=VALUE", help="Change any setting; wins over the file and other options."
)
"""--set, read back with `overrides`."""

threads_option = _option(
    _COMPUTE, "--threads", type=click.IntRange(1, 4096), metavar="N", help="CPU threads.  [default: all cores]"
)
"""--threads, read back with `compute`."""


def _compute_options(*dtypes: str) -> Callable[[Command], Command]:
    return _all(
        [
            _option(_COMPUTE, "--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.  [default: auto]"),
            _option(_COMPUTE, "--dtype", type=click.Choice(dtypes), help="[default: auto]"),
            threads_option,
        ]
    )


compute_options = _compute_options("auto", "fp32", "bf16")
"""--device, --dtype and --threads, read back with `compute`."""

engine_compute_options = _compute_options("auto", "fp32", "bf16", "int8")
"""The same for a verb that has an engine."""

decoding_options = _all(
    [
        _option(_DECODING, "--beam", type=int, metavar="N", help="Targets kept per sentence: decoding.beam."),
        _option(_DECODING, "--nbest", type=int, metavar="N", help="Targets returned per sentence: decoding.nbest."),
        _option(_DECODING, "--strategy", metavar="NAME", cls=_StrategyOption, help="decoding.strategy."),
        _option(_DECODING, "--length-penalty", type=float, metavar="X", help="decoding.length_penalty."),
        _option(_DECODING, "--coverage-penalty", type=float, metavar="X", help="decoding.coverage_penalty."),
        _option(_DECODING, "--stop", metavar="NAME", help="When a beam ends, optimal or first: decoding.stop."),
        _option(_DECODING, "--patience", type=float, metavar="X", help="Of stop = first: decoding.patience."),
        _option(_DECODING, "--groups", type=int, metavar="N", help="Of a diverse beam: decoding.groups."),
        _option(_DECODING, "--diversity", type=float, metavar="X", help="Cost of a repetition: decoding.diversity."),
        _option(_DECODING, "--min-length", type=int, metavar="N", help="Fewest target tokens: decoding.min_length."),
        _option(_DECODING, "--max-length", type=int, metavar="N", help="Most target tokens: decoding.max_length."),
        _option(_DECODING, "--prefix", metavar="TEXT", help="What every target begins with: decoding.prefix."),
        _option(_DECODING, "--ban", multiple=True, metavar="TEXT", help="Never said; @FILE, one a line: decoding.ban."),
        _option(_DECODING, "--no-repeat-ngram", type=int, metavar="N", help="Never twice: decoding.no_repeat_ngram."),
        _option(
            _DECODING, "--repetition-penalty", type=float, metavar="X", help="At least 1: decoding.repetition_penalty."
        ),
        _option(_DECODING, "--alignment/--no-alignment", type=bool, help="Align, for --json: decoding.alignment."),
        _option(_DECODING, "--vocabulary", metavar="FILE", help="All that may be said: decoding.vocabulary."),
        _option(
            _DECODING,
            "--constraints",
            "terminology",
            metavar="FILE",
            help="Terms, `source TAB target` a line, that targets must hold: decoding.terminology.",
        ),
        _option(
            _DECODING, "--max-tokens", type=int, metavar="N", help="Source tokens in a batch: decoding.max_tokens."
        ),
        _option(
            _DECODING,
            "--max-length-action",
            metavar="NAME",
            help="What to do with a sentence the model cannot read: error or truncate (with a warning).",
        ),
        _option(
            _DECODING, "--calibrated/--uncalibrated", type=bool, help="At the fitted temperature: decoding.calibrated."
        ),
        _option(_DECODING, "--unsmooth", type=float, metavar="X", help="Take label smoothing back: decoding.unsmooth."),
        _option(_DECODING, "--samples", type=int, metavar="N", help="Targets drawn per sentence: decoding.samples."),
        _option(_DECODING, "--seed", type=int, metavar="N", help="Of what is drawn: decoding.seed."),
        _option(_DECODING, "--temperature", type=float, metavar="X", help="Of what is drawn: decoding.temperature."),
        _option(_DECODING, "--top-k", type=int, metavar="N", help="Draw from the N likeliest: decoding.top_k."),
        _option(_DECODING, "--top-p", type=float, metavar="X", help="Draw from the nucleus: decoding.top_p."),
        _option(_DECODING, "--min-p", type=float, metavar="X", help="Times the likeliest: decoding.min_p."),
        _option(_DECODING, "--epsilon", type=float, metavar="X", help="Least probability drawn: decoding.epsilon."),
        _option(_DECODING, "--eta", type=float, metavar="X", help="The same by entropy: decoding.eta."),
        _option(_DECODING, "--utility", metavar="NAME", help="none, chrf or bleu, for least risk: decoding.utility."),
    ]
)
"""Short flags of decoding.*, read back with `overrides`."""

evaluation_options = _all(
    [
        _option(_EVALUATION, "--metrics", metavar="NAMES", help="Such as bleu,chrf,ter: evaluation.metrics."),
        _option(_EVALUATION, "--tokenize", metavar="NAME", help="auto, none, 13a, zh, char, …: evaluation.tokenize."),
        _option(_EVALUATION, "--lowercase/--cased", type=bool, help="Without or with case: evaluation.lowercase."),
    ]
)
"""Short flags of evaluation.*, read back with `overrides`."""

calibration_options = _all(
    [
        _option(
            _CALIBRATION,
            "--calibration",
            type=FILE,
            metavar="PICTURE",
            help="Measure how far probabilities can be believed, and draw it (.png, .svg, .pdf); '-' draws nothing.",
        ),
        click.option(
            "--fit-temperature",
            is_flag=True,
            expose_value=False,
            callback=_remember(_CALIBRATION),
            help="Fit a temperature to these pairs and store it with the model, for --calibrated.",
        ),
    ]
)
"""--calibration and --fit-temperature, read back with `calibrate`."""

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def compute() -> Compute:
    """What the running verb was told by --device, --dtype and --threads."""
    values = click.get_current_context().meta.get(_COMPUTE, {})
    return Compute(**values)


def limit_threads() -> None:
    """Have torch compute with as many threads as the running verb was told by --threads, if it was."""
    threads = compute().threads
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def calibrate() -> Calibrate:
    """What the running verb was told by --calibration and --fit-temperature."""
    values = click.get_current_context().meta.get(_CALIBRATION, {})
    return Calibrate(picture=values.get("calibration"), fit=values.get("fit_temperature", False))


def overrides() -> tuple[str, ...]:
    """`path=value` texts of the running verb, weakest first: short flags, then --set."""
    meta = click.get_current_context().meta
    flags = [f"decoding.{name}={_toml(value)}" for name, value in meta.get(_DECODING, {}).items()]
    for name, value in meta.get(_EVALUATION, {}).items():
        listed = tuple(part.strip() for part in value.split(",")) if name == "metrics" else value
        flags.append(f"evaluation.{name}={_toml(listed)}")
    return (*flags, *meta.get(_SET, {}).get("set", ()))


def _toml(value: str | int | float | bool | tuple[str, ...]) -> str:
    from translume.config.toml import literal

    return literal(value)


def changed(config: "Config", *rooms: str) -> "Config":
    """The settings of a trained model with the verb's overrides, which may only touch the named tables."""
    wanted = overrides()
    for assignment in wanted:
        if assignment.strip().split(".")[0] not in rooms:
            only = " and ".join(f"{room}.*" for room in rooms)
            raise SettingsError(f"--set {assignment}: this verb changes only {only}; the model is trained already")
    try:
        found = config.change(*wanted) if wanted else config
    except SettingsError as error:
        # Whether it was --set or a short flag, the setting's path says what is meant.
        raise SettingsError(str(error).removeprefix("--set: ")) from None
    given = [path.partition("=")[0].strip().removeprefix("decoding.") for path in wanted]
    if given:
        from translume.decoding import refuse_unread

        refuse_unread(found.decoding, given)
    return found
