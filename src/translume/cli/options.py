"""Options that several commands share, and rules for options that exclude or need others.

A group of options reaches its command as one argument, such as `compute`.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

from translume.cli.terminal import expected_text, is_quiet, undecoded_byte, warn
from translume.errors import DataError, SettingsError

if TYPE_CHECKING:
    from translume.config import Config, DecodingSettings, Direction, TrainingSettings
    from translume.decoding import Average
    from translume.translator import ComputeOptions, Translator

Command = TypeVar("Command", bound=Callable[..., Any])
Values = dict[str, Any]

# Whether a path exists is checked where it is read, so that every error has the same form.
FILE = click.Path(path_type=Path)


class _FolderPath(click.Path):
    """A folder that is read or made. Its name must be text, which settings and logs repeat."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("found nothing, expected a folder; '.' is the current one", param, ctx)
        if isinstance(value, str) and (byte := undecoded_byte(value)):
            self.fail(f"found the byte {byte:#04x}, {expected_text()}", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = _FolderPath(path_type=Path)


class _ModelPath(click.Path):
    """The folder of a model; for a name such as hf://owner/name, of its import in the cache; or a package; or demo."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and (value.startswith(("hf:", "opus:", "argos:", "demo")) or Path(value).exists()):
            from translume.checkpoint import model_folder

            return model_folder(value, progress=not is_quiet())
        return super().convert(value, param, ctx)


MODEL = _ModelPath(path_type=Path)
"""A model that is read. It may be a repository of the Hub."""


def option_group(
    parameter: str, build: Callable[[Values, Any], Any], options: Sequence[Callable[[Any], Any]]
) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a command, which gets them as the argument `parameter`.

    build: makes the argument from the options' values and from what an earlier group made of the same parameter, or
    None.
    """

    def decorate(command: Command) -> Command:
        names: list[str] = []

        @wraps(command)
        def _call(**values: Any) -> Any:
            own = {name: values.pop(name) for name in names}
            values[parameter] = build(own, values.get(parameter))
            return command(**values)

        added = len(getattr(_call, "__click_params__", ()))
        for option in reversed(options):
            option(_call)
        names += [each.name for each in _call.__click_params__[added:]]  # type: ignore[attr-defined]
        return _call  # type: ignore[return-value]  # it has the command's own options as parameters

    return decorate


def _typed() -> Iterator[tuple[str, click.Parameter, Any]]:
    """Yield the options and arguments on the command line: name as in --help, parameter and value."""
    context = click.get_current_context()
    for each in context.command.params:
        value = context.params.get(each.name or "")
        if value not in (None, ()) and context.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE:
            yield each.opts[0] if isinstance(each, click.Option) else each.human_readable_name.strip("[]."), each, value


def refuse_options(other: str, *options: str) -> None:
    """Raise SettingsError for the first of these options, named as in --help, that the command line has."""
    typed = {name for name, _, _ in _typed()}
    for option in options:
        if option in typed:
            raise SettingsError(f"{option} cannot be combined with {other}")


def excludes(option: str, *others: str) -> Callable[[Command], Command]:
    """Return a decorator of a command whose `option` cannot be combined with the others; names as in --help."""

    def check() -> None:
        if any(name == option for name, _, _ in _typed()):
            refuse_options(option, *others)

    return _checked(check)


def requires(option: str, needed: str) -> Callable[[Command], Command]:
    """Return a decorator of a command whose `option` has no effect without another."""

    def check() -> None:
        typed = {name for name, _, _ in _typed()}
        if option in typed and needed not in typed:
            raise SettingsError(f"{option}: expected {needed} as well")

    return _checked(check)


def _checked(check: Callable[[], None]) -> Callable[[Command], Command]:
    """Return a decorator that calls `check` before a command."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def _call(**values: Any) -> Any:
            check()
            return command(**values)

        return _call  # type: ignore[return-value]  # it has the command's own options as parameters

    return decorate


def collected(kind: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Return a decorator, the last above a command, that passes all its options as one dataclass."""

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(command)
        def _call(**values: Any) -> None:
            command(kind(**values))

        return _call

    return decorate


def refuse_text(file: str, command: str) -> None:
    """Raise DataError for an argument that is not the name of a file, and may be a text.  command: and its model."""
    from translume.data.addresses import is_address
    from translume.data.lines import STANDARD_INPUT

    if file != STANDARD_INPUT and not is_address(file) and not os.path.exists(file):
        is_name = not any(map(str.isspace, file)) and ("/" in file or "." in file)
        hint = f"; texts are read from standard input: echo {shlex.quote(file)} | translume {command}"
        raise DataError(f"{file}: no such file{'' if is_name else hint}")


def typed_command() -> str:
    """Return the command line of this command, without flags: they only change what is printed."""
    words = ["translume", str(click.get_current_context().info_name)]
    for name, parameter, value in _typed():
        if isinstance(parameter, click.Option):
            if not parameter.is_flag:
                words += [word for each in (value if parameter.multiple else [value]) for word in (name, str(each))]
        else:
            words += map(str, value if isinstance(value, tuple) else (value,))
    return shlex.join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where and how a command computes. threads None: all cores."""

    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    threads: int | None = None
    engine: Literal["auto", "fast", "plain"] = "auto"

    def to_load(self) -> "ComputeOptions":
        """Return the same choice as loading a model takes it."""
        from translume.translator import ComputeOptions

        return ComputeOptions(engine=self.engine, device=self.device, dtype=self.dtype, threads=self.threads)

    @property
    def precision(self) -> tuple[str, ...]:
        """The setting of --dtype for a training."""
        return () if self.dtype == "auto" else (f"training.precision={self.dtype}",)

    def load_plain(self, model: Path) -> "Translator":
        """Load a translator for a command that never uses the fast engine."""
        from translume.translator import Translator

        options = self.to_load()
        return Translator.load(model, replace(options, engine="plain", dtype=options.plain_dtype))


def _compute(values: Values, earlier: Compute | None) -> Compute:
    return Compute(**{name: value for name, value in values.items() if value is not None})


_DEVICE = click.option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.  [default: auto]")
_THREADS = click.option(
    "--threads", type=click.IntRange(1, 4096), metavar="N", help="CPU threads.  [default: all cores]"
)
_ENGINE = click.option(
    "--engine",
    type=click.Choice(["auto", "fast", "plain"]),
    help="fast: weights packed for this machine; plain: the model itself; auto: fast if the kernels support it.  "
    "[default: auto]",
)


def _dtype(*names: str) -> Callable[[Any], Any]:
    return click.option("--dtype", type=click.Choice(names), help="[default: auto]")


compute_options = option_group("compute", _compute, [_DEVICE, _dtype("auto", "fp32", "bf16"), _THREADS])
"""--device, --dtype and --threads, as `compute`."""

engine_compute_options = option_group(
    "compute", _compute, [_ENGINE, _DEVICE, _dtype("auto", "fp32", "bf16", "int8"), _THREADS]
)
"""--engine, --device, --dtype and --threads, as `compute`."""

threads_option = option_group("compute", _compute, [_THREADS])
"""--threads, as `compute`."""


def _assignments(table: str) -> Callable[[Values, tuple[str, ...] | None], tuple[str, ...]]:
    """Return what appends options as assignments "table.name=value"; options that were not given are left out."""

    def build(values: Values, earlier: tuple[str, ...] | None) -> tuple[str, ...]:
        from translume.config.base import literal

        added = []
        for name, value in values.items():
            if value is None or value == ():
                continue
            if name == "metrics":
                value = tuple(part.strip() for part in value.split(","))
            added.append(f"{table}.{name}={literal(value)}")
        return (*(earlier or ()), *added)

    return build


set_option = option_group(
    "overrides",
    lambda values, earlier: (*(earlier or ()), *values["set"]),
    [
        click.option(
            "--set",
            multiple=True,
            metavar="PATH=VALUE",
            help="Change any setting. Overrides the file and the other options.",
        )
    ],
)
"""--set, as `overrides`: assignments "path=value", weakest first. Goes below the other groups of settings."""


def late_help(text: Callable[[], str]) -> type[click.Option]:
    """Return a class of options whose help text is made when --help is shown, since that imports the settings."""

    class LateHelpOption(click.Option):
        def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
            self.help = text()
            return super().get_help_record(ctx)

    return LateHelpOption


def _strategies() -> str:
    from translume.config.decoding import STRATEGIES

    return f"{', '.join(sorted(STRATEGIES))}: decoding.strategy."


def _number(name: str, kind: type, help: str) -> Callable[[Any], Any]:
    return click.option(name, type=kind, metavar="N" if kind is int else "X", help=help)


def _text(name: str, help: str, *, metavar: str = "NAME", multiple: bool = False) -> Callable[[Any], Any]:
    return click.option(name, metavar=metavar, multiple=multiple, help=help)


_SOURCE_OPTIONS = [
    _text("--to", "Language to translate into, of a model with several: decoding.to.", metavar="CODE"),
    click.option("--from", "from_", metavar="CODE", help="Language of the texts: decoding.from_."),
    _number("--coverage-penalty", float, "decoding.coverage_penalty."),
    _text("--split", "Translate sentence by sentence: auto, always or never: decoding.split."),
    _text("--prefix", "Text that every target begins with: decoding.prefix.", metavar="TEXT"),
    click.option(
        "--timestamps/--no-timestamps",
        type=bool,
        default=None,
        help="Times of the segments of recordings: decoding.timestamps.",
    ),
    click.option("--alignment/--no-alignment", type=bool, default=None, help="Align, for --json: decoding.alignment."),
    click.option(
        "--constraints",
        "terminology",
        metavar="FILE",
        help="Terms, `source TAB target` a line, that targets must contain: decoding.terminology.",
    ),
    _text(
        "--max-length-action", "What to do with a sentence too long for the model: error or truncate (with a warning)."
    ),
    click.option(
        "--calibrated/--uncalibrated", type=bool, default=None, help="Use the fitted temperature: decoding.calibrated."
    ),
    _number("--unsmooth", float, "Undo label smoothing: decoding.unsmooth."),
    _number("--ctc-weight", float, "Weight of CTC in ranking: decoding.ctc_weight."),
    _text("--draft", "Small model that guesses tokens for greedy search: decoding.draft.", metavar="FOLDER"),
    _number("--draft-tokens", int, "Tokens that it guesses at a time: decoding.draft_tokens."),
    _text("--utility-model", "Model of --utility, a path or hf://owner/name: decoding.utility_model.", metavar="PATH"),
]
"""Options of [decoding] for models that read a source: those of `OF_SOURCES` in the settings."""

_SEARCH_OPTIONS = [
    _number("--beam", int, "Hypotheses kept per text: decoding.beam."),
    _number("--nbest", int, "Texts returned per input: decoding.nbest."),
    click.option("--strategy", metavar="NAME", cls=late_help(_strategies)),
    _number("--length-penalty", float, "decoding.length_penalty."),
    _text("--stop", "When a beam ends, optimal or first: decoding.stop."),
    _number("--patience", float, "For stop = first: decoding.patience."),
    _number("--groups", int, "Groups of a diverse beam: decoding.groups."),
    _number("--diversity", float, "Penalty for a token of another group: decoding.diversity."),
    _number("--min-length", int, "Minimum target tokens: decoding.min_length."),
    _number("--max-length", int, "Maximum target tokens: decoding.max_length."),
    _text("--ban", "Forbid a phrase; @FILE: one a line: decoding.ban.", metavar="TEXT", multiple=True),
    _number("--no-repeat-ngram", int, "Forbid repeated n-grams: decoding.no_repeat_ngram."),
    _number("--repetition-penalty", float, "At least 1: decoding.repetition_penalty."),
    _text("--vocabulary", "Allow only these words: decoding.vocabulary.", metavar="FILE"),
    _number("--max-tokens", int, "Tokens in a batch: decoding.max_tokens."),
    _number("--samples", int, "Samples per text: decoding.samples."),
    _number("--seed", int, "Seed of sampling: decoding.seed."),
    _number("--temperature", float, "Sampling temperature: decoding.temperature."),
    _number("--top-k", int, "Sample from the N likeliest tokens: decoding.top_k."),
    _number("--top-p", float, "Sample from the nucleus: decoding.top_p."),
    _number("--min-p", float, "Least share of the likeliest token's probability: decoding.min_p."),
    _number("--epsilon", float, "Least probability sampled: decoding.epsilon."),
    _number("--eta", float, "Least probability, by entropy: decoding.eta."),
    _text("--utility", "none, chrf, bleu, comet, …, for minimum Bayes risk: decoding.utility."),
]

_STOP_STRINGS = _text("--stop-strings", "End before this text: decoding.stop_strings.", metavar="TEXT", multiple=True)
generation_options = option_group("overrides", _assignments("decoding"), [*_SEARCH_OPTIONS, _STOP_STRINGS])
"""Options named like settings of [decoding] that a language model has, added to `overrides`."""

decoding_options = option_group("overrides", _assignments("decoding"), [*_SOURCE_OPTIONS, *_SEARCH_OPTIONS])
"""Options named like settings of [decoding], added to `overrides`."""

evaluation_options = option_group(
    "overrides",
    _assignments("evaluation"),
    [
        _text("--metrics", "Such as bleu,chrf,ter: evaluation.metrics.", metavar="NAMES"),
        _text("--tokenize", "auto, none, 13a, zh, char, …: evaluation.tokenize."),
        click.option("--lowercase/--cased", type=bool, default=None, help="Ignore case or not: evaluation.lowercase."),
        _text("--glossary", "Terms, `source TAB target` a line, whose share is measured: evaluation.glossary."),
        _number("--stride", int, "Tokens between windows of a language model: evaluation.stride."),
    ],
)
"""Options named like settings of [evaluation], added to `overrides`."""


def changed(config: "Config", overrides: Sequence[str], *tables: str) -> "Config":
    """Return the settings of a trained model with overrides, which may only change the named tables."""
    for assignment in overrides:
        if assignment.strip().split(".")[0] not in tables:
            only = " and ".join(f"{table}.*" for table in tables)
            raise SettingsError(f"--set {assignment}: this command changes only {only}; the model is already trained")
    try:
        new = config.change(*overrides) if overrides else config
    except SettingsError as error:
        # The setting's path says what is meant, whether --set or an option gave it.
        raise SettingsError(str(error).removeprefix("--set: ")) from None
    names = [path.partition("=")[0].strip().removeprefix("decoding.") for path in overrides]
    if names:
        from translume.decoding import resolve_strategy

        return new.model_copy(update={"decoding": resolve_strategy(new.decoding, names)})
    return new


def refuse_settings(command: str, overrides: Sequence[str], model: str, *, allowed: Sequence[str] = ()) -> None:
    """Raise SettingsError if an option sets a value of [evaluation] or [decoding] that has no effect on this model.

    allowed: names of settings that the command reads for this kind of model, besides the size of batches.
    """
    from translume.config import DecodingSettings, EvaluationSettings

    known = {f"{each.table}.{name}" for each in (DecodingSettings, EvaluationSettings) for name in each.model_fields}
    for name in (override.partition("=")[0].strip() for override in overrides):
        if name in known.difference(allowed, ("decoding.max_tokens",)):  # unknown names are refused with others
            raise SettingsError(f"{command}: {name} has no effect on a {model} here")


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def direction_options(command: Command) -> Command:
    """--to and --from, as `to` and `from_`."""
    to = click.option("--to", metavar="CODE", help="Language of the targets, of a model with several.")
    from_ = click.option("--from", "from_", metavar="CODE", help="Language of the sources.")
    return to(from_(command))


def ensemble_options(command: Command) -> Command:
    """--ensemble, as `others`, and --average."""
    another = click.option(
        "--ensemble",
        "others",
        type=MODEL,
        multiple=True,
        help="Another model with the same tokenizers to average predictions with. May be repeated.",
    )
    average = click.option(
        "--average",
        type=click.Choice(["probability", "log_probability"]),
        help="What an ensemble averages.  [default: probability]",
    )
    return another(average(command))


def load_ensemble(model: Path, others: Sequence[Path], average: "Average | None", compute: Compute) -> "Translator":
    """Return the translator of a folder, or the ensemble of it and others."""
    from translume.translator import Translator

    translator = Translator.load(model, compute.to_load())
    if others:
        rest = [Translator.load(other, compute.to_load()) for other in others]
        return translator.ensemble_with(*rest, average=average or "probability")
    if average is not None:
        raise SettingsError(f"--average {average}: expected --ensemble as well, a model to average with")
    return translator


def in_direction(translator: "Translator", decoding: "DecodingSettings") -> "tuple[Translator, Direction]":
    """Return the translator with the direction of `decoding` as its default, which forced decoding uses."""
    from translume.translator import Translator

    direction = translator.direction(to=decoding.to, from_=decoding.from_)
    if not translator.directions.several:
        return translator, direction
    config = translator.config.with_values("decoding", {"to": direction.target, "from_": direction.source})
    checkpoint = translator.checkpoint.changed(config=config)
    first, *others = translator.models.members
    models = replace(translator.models, members=(replace(first, checkpoint=checkpoint), *others))
    return Translator(checkpoint, models=models, fusion=translator.fusion), direction


def warn_of_warmup(training: "TrainingSettings") -> None:
    """Print a warning if a training ends before its learning rate reaches its peak."""
    if training.updates <= training.warmup_updates:
        warn(
            f"warning: training.warmup_updates = {training.warmup_updates:,}, but the training has "
            f"{training.updates:,} updates: the learning rate never reaches its peak"
        )
