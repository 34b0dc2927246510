"""Search over a step: one loop, strategies that choose, rules that allow.  Knows no model."""

from translume.decoding.beam import Beam, Candidates, Ending, Hypothesis
from translume.decoding.beam_search import BeamSearch
from translume.decoding.error import SearchError
from translume.decoding.greedy import Greedy
from translume.decoding.length import LengthPenalty
from translume.decoding.loop import decode
from translume.decoding.reshaped import Reshaped, Tempered, Unsmoothed, reshaped
from translume.decoding.rules import ForbidTokens, ForcedPrefix, MinimumLength, Rule, RuleContext
from translume.decoding.sampling import Sampling
from translume.decoding.search import search
from translume.decoding.standing import Standing
from translume.decoding.step import SearchState, Step, Stepper
from translume.decoding.stochastic_beam import StochasticBeam
from translume.decoding.strategy import Strategy, refuse_unread, strategy_from
from translume.decoding.truncation import Truncation

__all__ = [
    "Beam",
    "BeamSearch",
    "Candidates",
    "Ending",
    "ForbidTokens",
    "ForcedPrefix",
    "Greedy",
    "Hypothesis",
    "LengthPenalty",
    "MinimumLength",
    "Reshaped",
    "Rule",
    "RuleContext",
    "Sampling",
    "SearchError",
    "SearchState",
    "Standing",
    "Step",
    "Stepper",
    "StochasticBeam",
    "Strategy",
    "Tempered",
    "Truncation",
    "Unsmoothed",
    "decode",
    "refuse_unread",
    "reshaped",
    "search",
    "strategy_from",
]
