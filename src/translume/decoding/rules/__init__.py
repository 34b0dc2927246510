"""What may be said: rules stand beside the belief, one file each."""

from translume.decoding.rules.forbid_tokens import ForbidTokens
from translume.decoding.rules.forced_prefix import ForcedPrefix
from translume.decoding.rules.minimum_length import MinimumLength
from translume.decoding.rules.rule import Rule, RuleContext

__all__ = ["ForbidTokens", "ForcedPrefix", "MinimumLength", "Rule", "RuleContext"]
