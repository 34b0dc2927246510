"""What a beam record shows, as plain values: every hypothesis that a search looked at, and what became of it."""

from dataclasses import dataclass
from typing import Any, Literal

from translume.inspection.plain import from_plain, plain

Fate = Literal["continued", "best", "finished", "length", "outscored", "stopped", "forbidden"]
Verdict = Literal["", "same", "search error", "model error", "forbidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A hypothesis at some length: its parent's tokens and one more.

    id: its place in `nodes`.  parent: that of the hypothesis it continues; None for a first token.  length: its tokens.
    token, text: the last one.  log_p: log p_model of that token.  log_prob: of all its tokens.  total: log_prob with
    what rules, reshaping, a language model or a strategy add.  divisor, coverage, score: score = total / divisor +
    coverage, what it would be ranked by if it ended here; coverage and score are None for one that never entered the
    beam of a search with a coverage penalty. Hypotheses of one length are ranked by total.
    place: in the beam, from 0, best first; None if it never stood in it.
    fate: "continued": it has a child that entered the beam or finished. "best": finished, and the result. "finished":
    with its end mark or at the limit, but another one is the result. "length": the result, cut at the limit.
    "outscored": others had better totals, or all it could go on with was outscored. "stopped": it was still alive when
    the search ended, because others had finished before. "forbidden": rules left it nothing possible to go on with.
    """

    id: int
    parent: int | None
    length: int
    token: int
    text: str
    log_p: float
    log_prob: float
    total: float
    divisor: float
    coverage: float | None
    score: float | None
    place: int | None
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A whole target and its price: the terms are those of a `Node`.

    score: None, total −inf, where rules forbid the target.  node: its node in the record, None if the search never
    looked at it to its end.
    """

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    log_prob: float
    total: float
    score: float | None
    finished_by: Literal["eos", "length"]
    node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamRecord:
    """A search of one sentence.

    strategy, width: what searched.  length_penalty, length_penalty_form: its exponent and form.
    finished: all that finished, best first; the first one is the result.  greedy: what the likeliest token at every
    step comes to.  beat_greedy: whether the result scores above it.
    reference: a given target under the same model, rules and penalties; None where none was given.
    verdict: "" without a reference; "same" where the result is the reference; "search error" where the reference scores
    above the result, which the search therefore missed; "model error" where the model prefers its own result;
    "forbidden" where rules forbid the reference.
    """

    schema: Literal["beam/1"]
    source: str
    strategy: str
    width: int
    length_penalty: float
    length_penalty_form: str
    nodes: tuple[Node, ...]
    finished: tuple[Target, ...]
    greedy: Target
    beat_greedy: bool
    reference: Target | None
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON knows it; `docs/trace.schema.json` describes it."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "BeamRecord":
        """The record that `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)
