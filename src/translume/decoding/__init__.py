"""Search: the decoding loop, strategies that choose tokens, and rules that restrict them. Independent of the model."""

from translume.decoding.beam import Beam, BeamStatus, Candidates, Ending, Hypothesis, ScoreTerms, SearchError
from translume.decoding.beam_search import BeamSearch, Greedy
from translume.decoding.constrained_beam import Boundaries, ConstrainedBeam, Constraints, Phrase
from translume.decoding.ctc_prefix import CtcPrefix
from translume.decoding.diverse import DiverseBeam
from translume.decoding.ensemble import Average, Averaged, Ensemble, Fused, Fusion, LanguageModel
from translume.decoding.loop import (
    BestHypotheses,
    CompleteSearch,
    CompleteSearcher,
    best_of,
    decode,
    runs_searches,
    search,
)
from translume.decoding.rules import (
    AfterTokens,
    EndTokens,
    ForbidFirst,
    ForbidTokens,
    ForcedPrefix,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Rule,
    RuleContext,
    TimesInPairs,
)
from translume.decoding.sampling import Sampling, Truncation
from translume.decoding.scoring import Coverage, LengthPenalty
from translume.decoding.stable_prefix import SearchObserver, StablePrefix
from translume.decoding.step import (
    AttentionState,
    AttentionStepper,
    PromptedState,
    PromptedStep,
    SearchState,
    Step,
    Stepper,
)
from translume.decoding.stochastic_beam import StochasticBeam
from translume.decoding.strategy import Strategy, makes_draws, resolve_strategy, strategy_from
from translume.decoding.text_rules import BannedPhrases, Spellings, TextPrefix
from translume.decoding.used_distribution import Reshaped, Tempered, Unsmoothed, reshaped

__all__ = [
    "AfterTokens",
    "AttentionState",
    "AttentionStepper",
    "Average",
    "Averaged",
    "BannedPhrases",
    "Beam",
    "BeamSearch",
    "BeamStatus",
    "BestHypotheses",
    "Boundaries",
    "Candidates",
    "CompleteSearch",
    "CompleteSearcher",
    "ConstrainedBeam",
    "Constraints",
    "Coverage",
    "CtcPrefix",
    "DiverseBeam",
    "EndTokens",
    "Ending",
    "Ensemble",
    "ForbidFirst",
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
    "PromptedState",
    "PromptedStep",
    "RepetitionPenalty",
    "Reshaped",
    "Rule",
    "RuleContext",
    "Sampling",
    "ScoreTerms",
    "SearchError",
    "SearchObserver",
    "SearchState",
    "Spellings",
    "StablePrefix",
    "Step",
    "Stepper",
    "StochasticBeam",
    "Strategy",
    "Tempered",
    "TextPrefix",
    "TimesInPairs",
    "Truncation",
    "Unsmoothed",
    "best_of",
    "decode",
    "makes_draws",
    "reshaped",
    "resolve_strategy",
    "runs_searches",
    "search",
    "strategy_from",
]
