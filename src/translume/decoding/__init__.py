"""Search: the decoding loop, strategies that choose tokens, and rules that restrict them. Independent of the model."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.decoding.beam import Beam as Beam
    from translume.decoding.beam import BeamStatus as BeamStatus
    from translume.decoding.beam import Candidates as Candidates
    from translume.decoding.beam import Ending as Ending
    from translume.decoding.beam import Hypothesis as Hypothesis
    from translume.decoding.beam import ScoreTerms as ScoreTerms
    from translume.decoding.beam import SearchError as SearchError
    from translume.decoding.beam_search import BeamSearch as BeamSearch
    from translume.decoding.beam_search import Greedy as Greedy
    from translume.decoding.constrained_beam import Boundaries as Boundaries
    from translume.decoding.constrained_beam import ConstrainedBeam as ConstrainedBeam
    from translume.decoding.constrained_beam import Constraints as Constraints
    from translume.decoding.constrained_beam import Phrase as Phrase
    from translume.decoding.ctc_prefix import CtcPrefix as CtcPrefix
    from translume.decoding.diverse import DiverseBeam as DiverseBeam
    from translume.decoding.ensemble import Average as Average
    from translume.decoding.ensemble import Averaged as Averaged
    from translume.decoding.ensemble import Ensemble as Ensemble
    from translume.decoding.ensemble import Fusion as Fusion
    from translume.decoding.ensemble import LanguageModel as LanguageModel
    from translume.decoding.loop import BestHypotheses as BestHypotheses
    from translume.decoding.loop import CompleteSearch as CompleteSearch
    from translume.decoding.loop import CompleteSearcher as CompleteSearcher
    from translume.decoding.loop import best_of as best_of
    from translume.decoding.loop import decode as decode
    from translume.decoding.loop import runs_searches as runs_searches
    from translume.decoding.loop import search as search
    from translume.decoding.rules import AfterTokens as AfterTokens
    from translume.decoding.rules import EndTokens as EndTokens
    from translume.decoding.rules import ForbidFirst as ForbidFirst
    from translume.decoding.rules import ForbidTokens as ForbidTokens
    from translume.decoding.rules import ForcedPrefix as ForcedPrefix
    from translume.decoding.rules import MinimumLength as MinimumLength
    from translume.decoding.rules import NoRepeatNgram as NoRepeatNgram
    from translume.decoding.rules import OnlyTokens as OnlyTokens
    from translume.decoding.rules import RepetitionPenalty as RepetitionPenalty
    from translume.decoding.rules import Rule as Rule
    from translume.decoding.rules import RuleContext as RuleContext
    from translume.decoding.rules import TimesInPairs as TimesInPairs
    from translume.decoding.sampling import Sampling as Sampling
    from translume.decoding.sampling import Truncation as Truncation
    from translume.decoding.scoring import Coverage as Coverage
    from translume.decoding.scoring import LengthPenalty as LengthPenalty
    from translume.decoding.stable_prefix import SearchObserver as SearchObserver
    from translume.decoding.stable_prefix import StablePrefix as StablePrefix
    from translume.decoding.step import AttentionStepper as AttentionStepper
    from translume.decoding.step import PromptedState as PromptedState
    from translume.decoding.step import PromptedStep as PromptedStep
    from translume.decoding.step import Step as Step
    from translume.decoding.step import Stepper as Stepper
    from translume.decoding.stochastic_beam import StochasticBeam as StochasticBeam
    from translume.decoding.strategy import Strategy as Strategy
    from translume.decoding.strategy import makes_draws as makes_draws
    from translume.decoding.strategy import resolve_strategy as resolve_strategy
    from translume.decoding.strategy import strategy_from as strategy_from
    from translume.decoding.text_rules import BannedPhrases as BannedPhrases
    from translume.decoding.text_rules import Spellings as Spellings
    from translume.decoding.text_rules import TextPrefix as TextPrefix
    from translume.decoding.used_distribution import Tempered as Tempered
    from translume.decoding.used_distribution import Unsmoothed as Unsmoothed
    from translume.decoding.used_distribution import reshaped as reshaped

export_late(__name__)
