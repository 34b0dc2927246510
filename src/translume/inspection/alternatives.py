"""What other choices come to, as plain values: a forced token, a wanted text, an edited source."""

from dataclasses import dataclass
from typing import Any, Literal

from translume.inspection.plain import from_plain, plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A whole target.  log_prob: nats, the sum of token_log_probs.  score: what a search ranks it by."""

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    log_prob: float
    score: float
    finished_by: Literal["eos", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A token at a fork, by p_model: its probability, log-probability in nats and rank from 1."""

    id: int
    text: str
    p_model: float
    log_p_model: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where two targets part: after `step` common tokens one goes on with `chosen`, the other with `wanted`."""

    step: int
    chosen: Choice
    wanted: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What becomes of a target when one of its tokens is another.

    before: the target as it was.  after: the best one that begins with the tokens before the fork and the wanted ones,
    the first of which is the fork's.
    """

    schema: Literal["forced/1"]
    source: str
    before: Outcome
    fork: Fork
    after: Outcome

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them; `docs/trace.schema.json` describes them."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "Forced":
        """What `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNot:
    """Why a text was not the translation.

    found: what the search found.  fork: where the wanted text first parts from it; None where they are the same.
    continued: the best target that takes the wanted token at the fork; None without a fork, or where rules forbid it.
    wanted: the wanted text at the search's prices; None where rules forbid it.
    """

    schema: Literal["why-not/1"]
    source: str
    text: str
    found: Outcome
    fork: Fork | None
    continued: Outcome | None
    wanted: Outcome | None

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them; `docs/trace.schema.json` describes them."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "WhyNot":
        """What `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What an edited source changes.

    before, after: the translations of both.  step: how many tokens they share; None where they are the same.
    moves: for each token of `before`, its log-probability after the edited source less that after the source, in nats;
    None where either is −inf.
    """

    schema: Literal["edited/1"]
    source: str
    edited: str
    before: Outcome
    after: Outcome
    step: int | None
    moves: tuple[float | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON knows them; `docs/trace.schema.json` describes them."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "Edited":
        """What `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)
