"""The work that processes share, line by line: to translate, to score targets, to continue prompts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from translume.config import DecodingSettings
from translume.translator.generator import Generation, Generator
from translume.translator.messages import TRANSLATIONS
from translume.translator.planning import Line
from translume.translator.results import TargetScore, Translation
from translume.translator.scoring import score_lines
from translume.translator.translator import Translator

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[R]):
    """What to do with each line of an input.

    name: where the job is defined, "package.module:NAME"; another process finds it by that.
    results: how results are sent.
    run: (model, lines, settings) -> the results, in order. Raises LineError for the first line that has none, after the
    results of those before it.
    """

    name: str
    results: TypeAdapter[list[R]]
    run: Callable[[Any, Sequence[Line], DecodingSettings], Iterable[R]]


def find_job(name: str) -> Job[Any]:
    """Return the job of a name."""
    job = resolve_name(name)
    assert isinstance(job, Job)
    return job


def _translate(translator: Translator, lines: Sequence[Line], settings: DecodingSettings) -> Iterable[Translation]:
    return translator.translate_lines(list(lines), settings)


def _score(translator: Translator, lines: Sequence[Line], settings: DecodingSettings) -> Iterable[TargetScore]:
    return score_lines(translator.checkpoint, lines, settings, translator.models)


def _generate(generator: Generator, lines: Sequence[Line], settings: DecodingSettings) -> Iterable[Generation]:
    return generator.generate_lines(lines, settings)


TRANSLATE: Final = Job(name=f"{__name__}:TRANSLATE", results=TRANSLATIONS, run=_translate)
SCORE: Final = Job(name=f"{__name__}:SCORE", results=TypeAdapter(list[TargetScore]), run=_score)
"""The lines have a target. Settings: the languages, and `max_tokens` in a batch."""
GENERATE: Final = Job(name=f"{__name__}:GENERATE", results=TypeAdapter(list[Generation]), run=_generate)
"""The text of a line is a prompt."""
