"""Fine-tuning: the settings and weights that a run takes from its base model."""

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from translume.checkpoint import AnyCheckpoint
from translume.config import Config, Settings
from translume.config.data import PATHS
from translume.errors import SettingsError
from translume.model.classifier import Network
from translume.text import Labels, Tokenizer
from translume.training.resume import first_difference

Group = TypeVar("Group", bound=Settings)

DROPOUT_SETTINGS = (
    "dropout", "attention_dropout", "activation_dropout", "final_dropout", "expert_capacity_factor", "expert_balance",
)  # fmt: skip
"""Settings in [model] that may change when a model is fine-tuned."""

SIZES = ("width", "feed_forward", "encoder_layers", "decoder_layers", "attention_heads", "head.tie")
"""Settings in [model] that `translume init` proposes for any data. The base model's are used instead."""

_OF_FILES = (
    *PATHS, "columns", "document_column", "template", "weights", "corpus", "sampling_temperature", "streaming",
    "shuffle_buffer", "objective",
)  # fmt: skip


def inherit_settings(config: Config, base: Config, place: str) -> tuple[Config, str]:
    """Return the settings of a run that fine-tunes a model, and a line about stated settings that are not used.

    [training] except `ctc_weight`, and the files of [data], are the run's own. Everything else that the settings do not
    state is that of `base`; so are [model] and [tokenizer], except dropout. The line is empty if all stated settings
    are used.
    Raises SettingsError for another task or source, and for a stated [model] setting that contradicts the base model,
    other than the sizes that `translume init` proposes.
    """
    if "task" in config.data.model_fields_set and config.data.task != base.data.task:
        raise SettingsError(f"data.task: found '{config.data.task}', but {place} has '{base.data.task}'")
    if "source" in config.data.model_fields_set and config.data.source != base.data.source:
        path, found, wanted = first_difference("data.source", config.data.source, base.data.source)
        raise SettingsError(f"{path}: found {found!r}, but {place} has {wanted!r}; use that value or leave it out")
    unused = [*_contradictions(config.model, base.model, "model", DROPOUT_SETTINGS)]
    for path, found, wanted in unused:
        if path.removeprefix("model.") not in SIZES:
            raise SettingsError(f"{path}: found {found!r}, but {place} has {wanted!r}; use that value or leave it out")
    unused += _contradictions(
        config.tokenizer, base.tokenizer, "tokenizer", ("dropout", "path", "target_path", "extend")
    )
    data = _merged(config.data, base.data, without=_OF_FILES)
    training = config.training
    if "ctc_weight" not in training.model_fields_set:  # which adds a head to the network
        training = training.model_copy(update={"ctc_weight": base.training.ctc_weight})
    own_search = ["calibrated"]  # fitted to other weights
    if not training.ctc_weight:
        own_search.append("ctc_weight")
    own_scoring = () if data.target_language == base.data.target_language else ("tokenize",)
    inherited = config.model_copy(
        update={
            "data": data,
            "training": training,
            "model": _merged(base.model, config.model, only=DROPOUT_SETTINGS),
            "tokenizer": _merged(base.tokenizer, config.tokenizer, only=("dropout",)).model_copy(
                update={"extend": config.tokenizer.extend}
            ),
            "evaluation": _merged(config.evaluation, base.evaluation, without=own_scoring),
            "decoding": _merged(config.decoding, base.decoding, without=own_search),
        }
    )
    named = ", ".join(f"{path} = {found!r}" for path, found, _ in unused)
    return inherited, f"model and tokenizer are those of {place}; not used: {named}" if named else ""


def _contradictions(
    settings: Settings, base: Settings, table: str, free: Iterable[str]
) -> Iterable[tuple[str, Any, Any]]:
    """Yield path, value and the base model's value of each stated setting that differs from the base model's."""
    for name in type(settings).model_fields:
        found, wanted = getattr(settings, name), getattr(base, name, None)
        if name in free or name not in settings.model_fields_set or found == wanted:
            continue
        if isinstance(found, Settings) and isinstance(wanted, Settings):
            yield from _contradictions(found, wanted, f"{table}.{name}", ())
        else:
            yield f"{table}.{name}", found, wanted


def _merged(
    settings: Group, base: Settings, *, without: Iterable[str] = (), only: Iterable[str] | None = None
) -> Group:
    """Return `settings` with values of `base`.

    only: the settings to take from `base`, where it states them.  None: all that `settings` does not state, except
    `without`.
    """
    update: dict[str, Any] = {}
    for name in type(settings).model_fields:
        own, inherited = getattr(settings, name), getattr(base, name)
        if only is not None:
            if name in only and name in base.model_fields_set:
                update[name] = inherited
        elif isinstance(own, Settings) and type(own) is type(inherited):
            update[name] = _merged(own, inherited)
        elif name not in without and name not in settings.model_fields_set:
            update[name] = inherited
    return type(settings).model_validate({**{n: getattr(settings, n) for n in type(settings).model_fields}, **update})


def load_base(network: Network, base: AnyCheckpoint, source: Tokenizer, target: Tokenizer | Labels) -> None:
    """Give a network the weights of a base model, whose ids its vocabularies may extend.

    The rows of a new token are the means of those of the base model's tokens for its text. Separators of segments stay
    those of the network. A loss of CTC may be added or left out. Raises SettingsError for a head whose tensors are not
    one row for each token.
    """
    theirs, weights = base.model.state_dict(), dict(network.named_parameters(remove_duplicate=False))
    sides = {True: (base.source_tokenizer, source), False: (base.target, target)}
    loaded = {}
    for name, own in network.state_dict().items():
        value = theirs.get(name, own)
        old, new = sides[name.startswith("encoder.")]
        if name.endswith("embedding.separators"):
            value = own  # of the new tokens, too
        if value.shape != own.shape:
            if name not in weights or not isinstance(old, Tokenizer) or not isinstance(new, Tokenizer):
                kind = base.config.model.head.kind
                raise SettingsError(f"tokenizer.extend: {name} cannot grow with model.head.kind = '{kind}', expected 0")
            pieces = new.vocabulary.pieces[len(old) :]
            rows = [value[list(old.segment_ids(piece))].mean(0) for piece in pieces]
            value = torch.cat([value, torch.stack(rows)])
            if value.shape != own.shape:
                raise SettingsError(f"tokenizer.extend: {name} has no row for each token, expected 0")
        loaded[name] = value
    network.load_state_dict(loaded)
