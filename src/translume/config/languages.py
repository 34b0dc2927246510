"""The languages and directions of a model, and the choice of one direction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

from translume.config.data import DataSettings
from translume.config.model import ModelSettings
from translume.errors import SettingsError, closest

ENGLISH = "en"
SHOWN = 12
"""Maximum number of directions that a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Codes of the languages of a source and its target; empty if unknown or irrelevant."""

    source: str = ""
    target: str = ""

    def __str__(self) -> str:
        return f"{self.source}→{self.target}"


NO_DIRECTION = Direction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Directions:
    """The directions of a model.

    trained: those in its training data, in order; none for an imported model whose training data are not known.
    sources, targets: codes of all languages that it reads and writes, in order.
    default: the direction of [data], whose codes may be empty.
    tagged: whether it reads the target's language from a tag.  reads_source: whether it reads the source's as well.
    speech: whether it writes the language of a recording, which it can detect, or English.
    """

    trained: tuple[Direction, ...]
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    default: Direction
    tagged: bool
    reads_source: bool
    speech: bool = False

    @classmethod
    def from_settings(cls, data: DataSettings, model: ModelSettings, languages: Iterable[str] = ()) -> Self:
        """Return the directions of a model.  languages: codes of the tags in its vocabulary."""
        default = Direction(source=data.source_language, target=data.target_language)
        trained = tuple(
            dict.fromkeys(Direction(source=each.source_language, target=each.target_language) for each in data.corpus)
        )
        tags = tuple(code for code in languages if code)  # without that of texts whose language has no code
        tagged = bool(tags) and model.language_tags != "none"
        if not trained and (not tagged or {default.source, default.target} >= set(tags)):
            trained = (default,) if default.source and default.target else ()
        known = tags if tagged and not trained else ()
        return cls(
            trained=trained,
            sources=known or tuple(dict.fromkeys(each.source for each in trained)),
            targets=known or tuple(dict.fromkeys(each.target for each in trained)),
            default=default,
            tagged=tagged,
            reads_source=tagged and model.language_tags == "target",
            speech=tagged and model.language_tags == "speech",
        )

    @property
    def several(self) -> bool:
        """Whether the model reads or writes more than one language."""
        return len(self.sources) > 1 or len(self.targets) > 1

    @property
    def offered(self) -> tuple[Direction, ...]:
        """The trained directions; if they are not known, all pairs of different languages."""
        if self.speech:
            return tuple(Direction(source=code, target=to) for code in self.sources for to in {code: 0, ENGLISH: 0})
        pairs = product(self.sources, self.targets)
        return self.trained or tuple(Direction(source=a, target=b) for a, b in pairs if a != b)

    def untrained(self, chosen: Direction) -> bool:
        """Return whether the training data, if they are known, do not have a direction (zero-shot translation)."""
        return bool(self.trained and chosen.source) and chosen not in self.trained

    def resolve(self, source: str, target: str) -> Direction:
        """Return the direction for codes that may be empty, if the others leave one choice.

        A model with tags may combine any two of its languages, also if no training data had this direction.
        Raises SettingsError for a language that the model does not have, or if several choices remain.
        """
        if not self.sources:
            for name, code in (("to", target), ("from_", source)):
                if code:
                    raise SettingsError(
                        f"decoding.{name}: found '{code}', but the model does not name its languages; expected no code"
                    )
            return self.default
        self._check("to", target, self.targets)
        self._check("from_", source, self.sources)
        if self.speech:
            return self._of_speech(source, target)
        default = self.default
        if not target and default.target in self.targets and default.target != source:
            target = default.target
        fitting = [each for each in self.trained if source in ("", each.source) and target in ("", each.target)]
        target = target or self._only("to", "--to", [each.target for each in fitting] or self.targets)
        sources = [each.source for each in fitting if each.target == target] or self.sources
        if not source and default.source in sources and default.source != target:
            source = default.source
        if not source and not self.reads_source and len(set(sources)) > 1:
            return Direction(target=target)
        source = source or self._only("from_", "--from", sources)
        chosen = Direction(source=source, target=target)
        if chosen not in self.trained and (source == target or not self.tagged):
            raise SettingsError(f"decoding.to: found {chosen}; the model translates {self.describe()}")
        return chosen

    def _of_speech(self, source: str, target: str) -> Direction:
        """Return the direction of a recording; the source is empty for a language to detect, the target for the same.

        Only English is written for another language.
        """
        source = source or (target if target != ENGLISH else "")
        target = target or source
        if source and target not in (source, ENGLISH):
            raise SettingsError(
                f"decoding.to: found {source}→{target}, expected '{source}' or '{ENGLISH}': the model writes the "
                "language of a recording, or English"
            )
        return Direction(source=source, target=target)

    def _check(self, name: str, code: str, known: Sequence[str]) -> None:
        if code and code not in known:
            close = closest(code, known)
            hint = f"did you mean '{close}'?" if close else f"the model translates {self.describe()}"
            raise SettingsError(f"decoding.{name}: found '{code}'; {hint}")

    def _only(self, name: str, option: str, known: Sequence[str]) -> str:
        codes = list(dict.fromkeys(known))
        if len(codes) == 1:
            return codes[0]
        listed = ", ".join(codes[:SHOWN]) + (f" and {len(codes) - SHOWN} more" if len(codes) > SHOWN else "")
        raise SettingsError(f"decoding.{name}: empty, expected one of the model's languages ({option}): {listed}")

    def parse(self, name: str) -> Direction:
        """Return the direction written as "en-de" or "en→de". Raises SettingsError for one that the model lacks."""
        for place, character in enumerate(name):
            if character in "-→" and name[:place] in self.sources and name[place + 1 :] in self.targets:
                return self.resolve(name[:place], name[place + 1 :])
        known = [str(each).replace("→", "-") for each in self.offered]
        close = closest(name, known)
        hint = f"did you mean '{close}'?" if close else f"the model translates {self.describe()}"
        raise SettingsError(f"direction: found '{name}'; {hint}")

    def describe(self) -> str:
        """Return the offered directions as words, such as "en→de, de→en"."""
        offered = self.offered
        more = f" and {len(offered) - SHOWN:,} more directions" if len(offered) > SHOWN else ""
        return ", ".join(map(str, offered[:SHOWN])) + more
