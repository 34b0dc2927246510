"""What may be said: rules stand beside the belief, one file each."""

from translume.decoding.rules.banned_phrases import BannedPhrases
from translume.decoding.rules.forbid_tokens import ForbidTokens
from translume.decoding.rules.forced_prefix import ForcedPrefix
from translume.decoding.rules.minimum_length import MinimumLength
from translume.decoding.rules.no_repeat_ngram import NoRepeatNgram
from translume.decoding.rules.only_tokens import OnlyTokens
from translume.decoding.rules.repetition_penalty import RepetitionPenalty
from translume.decoding.rules.rule import Lifting, Rule, RuleContext, most_lift
from translume.decoding.rules.spelling import Spellings
from translume.decoding.rules.text_prefix import TextPrefix

__all__ = [
    "BannedPhrases",
    "ForbidTokens",
    "ForcedPrefix",
    "Lifting",
    "MinimumLength",
    "NoRepeatNgram",
    "OnlyTokens",
    "RepetitionPenalty",
    "Rule",
    "RuleContext",
    "Spellings",
    "TextPrefix",
    "most_lift",
]
