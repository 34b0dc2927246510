"""Search over a step: one loop, strategies that choose, rules that allow.  Knows no model."""

from translume.decoding.beam import Beam, Candidates, Ending, Hypothesis, ScoreTerms
from translume.decoding.beam_search import BeamSearch
from translume.decoding.constrained_beam import ConstrainedBeam
from translume.decoding.constraints import Boundaries, Constraints, Phrase
from translume.decoding.coverage import Coverage
from translume.decoding.diverse import DiverseBeam
from translume.decoding.ensemble import Average, Averaged, Ensemble
from translume.decoding.error import SearchError
from translume.decoding.fusion import Fused, Fusion, LanguageModel
from translume.decoding.greedy import Greedy
from translume.decoding.length import LengthPenalty
from translume.decoding.loop import Search, decode
from translume.decoding.reshaped import Reshaped, Tempered, Unsmoothed, reshaped
from translume.decoding.rules import (
    BannedPhrases,
    ForbidTokens,
    ForcedPrefix,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Rule,
    RuleContext,
    Spellings,
    TextPrefix,
)
from translume.decoding.sampling import Sampling
from translume.decoding.search import Best, best_of, search
from translume.decoding.stable import Certainty, Watch
from translume.decoding.standing import Standing
from translume.decoding.step import Attentive, AttentiveStepper, SearchState, Step, Stepper
from translume.decoding.stochastic_beam import StochasticBeam
from translume.decoding.strategy import Strategy, refuse_unread, strategy_from
from translume.decoding.truncation import Truncation
from translume.decoding.whole import Searcher, WholeSearch

__all__ = [
    "Attentive",
    "AttentiveStepper",
    "Average",
    "Averaged",
    "BannedPhrases",
    "Beam",
    "BeamSearch",
    "Best",
    "Boundaries",
    "Candidates",
    "Certainty",
    "ConstrainedBeam",
    "Constraints",
    "Coverage",
    "DiverseBeam",
    "Ending",
    "Ensemble",
    "ForbidTokens",
    "ForcedPrefix",
    "Fused",
    "Fusion",
    "Greedy",
    "Hypothesis",
    "LanguageModel",
    "LengthPenalty",
    "MinimumLength",
    "NoRepeatNgram",
    "OnlyTokens",
    "Phrase",
    "RepetitionPenalty",
    "Reshaped",
    "Rule",
    "RuleContext",
    "Sampling",
    "ScoreTerms",
    "Search",
    "SearchError",
    "SearchState",
    "Searcher",
    "Spellings",
    "Standing",
    "Step",
    "Stepper",
    "StochasticBeam",
    "Strategy",
    "Tempered",
    "TextPrefix",
    "Truncation",
    "Unsmoothed",
    "Watch",
    "WholeSearch",
    "best_of",
    "decode",
    "refuse_unread",
    "reshaped",
    "search",
    "strategy_from",
]
