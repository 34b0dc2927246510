"""Searches of one sentence whose beginning may be given as ids: what records and what-ifs are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from translume.config import DecodingSettings
from translume.decoding import ForcedPrefix, Hypothesis, SearchError, best_of, strategy_from
from translume.errors import TranslationError
from translume.inspection.subject import encoded_source
from translume.translator import Translator
from translume.translator.plan import Piece
from translume.translator.searching import Prepared, prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A translator, a text and its ids with the end mark, and the settings of its searches."""

    translator: Translator
    text: str
    source: tuple[int, ...]
    settings: DecodingSettings

    @classmethod
    def of(cls, translator: Translator, source: str, settings: DecodingSettings | None) -> "Searched":
        """Raises TranslationError for a blank source or one that is longer than the model reads."""
        chosen = settings or translator.config.decoding
        translator.check(chosen)
        return cls(
            translator=translator, text=source, source=encoded_source(translator.checkpoint, source), settings=chosen
        )

    @torch.inference_mode()
    def prepare(self, prefix: Sequence[int] = (), *, greedy: bool = False) -> Prepared:
        """What a search takes whose target begins with the ids of `prefix`, if any; by whatever engine translates."""
        settings = self.settings
        if greedy:
            settings = settings.model_copy(update={"strategy": "beam", "beam": 1, "nbest": 1})
        stepper = self.translator.models.stepper(attentive=strategy_from(settings).coverage is not None)
        ready = prepare(
            self.translator.checkpoint,
            [Piece(ids=self.source[:-1])],
            settings,
            stepper,
            self.translator.fusion,
        )
        if not prefix:
            return ready
        # The limit stays that of the search that is looked at; a whole target has its price even beyond it.
        limits = ready.limits.clamp(min=len(prefix))
        return replace(ready, limits=limits, rules=[*ready.rules, ForcedPrefix([prefix])])

    def best(self, prefix: Sequence[int] = (), *, greedy: bool = False) -> Hypothesis:
        """The best target by score that begins with `prefix`; TranslationError where there is none."""
        try:
            return _first(self.prepare(prefix, greedy=greedy))
        except SearchError as error:
            raise TranslationError(f"target: token {error.token}: {error.reason}") from None

    def best_or_none(self, prefix: Sequence[int], *, greedy: bool = False) -> Hypothesis | None:
        """The same, and None where rules forbid every one."""
        try:
            return _first(self.prepare(prefix, greedy=greedy))
        except SearchError:
            return None

    def worth(self, ids: Sequence[int]) -> Hypothesis | None:
        """A whole target as the search would have priced it, the end mark among its ids; None where rules forbid it."""
        found = self.best_or_none(ids, greedy=True)
        return found if found is not None and found.tokens == tuple(ids) else None


def _first(ready: Prepared) -> Hypothesis:
    return best_of(ready.beams(), ready.strategy, 1)[0][0]
