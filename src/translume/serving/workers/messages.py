"""What the server and its worker processes send each other, beyond `translator.messages`: results, errors, models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from translume.serving.api.errors import RequestError
from translume.translator import Classification, Generation, TargetScore, TextHypothesis
from translume.translator.messages import decode_error as decode_known_error
from translume.translator.messages import encode_error as encode_known_error

HYPOTHESIS: Final = TypeAdapter(TextHypothesis)
SCORE: Final = TypeAdapter(TargetScore)
CLASSIFICATION: Final = TypeAdapter(Classification)
GENERATION: Final = TypeAdapter(Generation)
NUMBERS: Final = TypeAdapter(list[float])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What the server knows of a model that a worker has loaded: everything but its weights.

    state: of its folder.  task: its name.  facts: for clients.  config: TOML.  source, target: vocabularies as JSON;
    target is empty if both are the same.  lengths: of the training data, as JSON; empty if they are unknown.
    """

    state: str
    task: str
    facts: dict[str, Any]
    config: str
    source: str
    target: str = ""
    lengths: str = ""


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON values for `decode_error`."""
    if isinstance(error, RequestError):
        about = {"code": error.code, "field": error.field, "retry_after": error.retry_after}
        return {"status": error.status, "reason": str(error), "about": about}
    return encode_known_error(error)


def decode_error(values: Mapping[str, Any]) -> Exception:
    """Return the error of `encode_error`."""
    if "status" in values:
        return RequestError(values["status"], values["reason"], **values["about"])
    return decode_known_error(values)
