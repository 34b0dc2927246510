"""Requests to translate whose lines share one search in a worker process."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from translume.errors import TranslumeError
from translume.processes import Request
from translume.serving.workers.messages import encode_error
from translume.translator import Translation, Translator
from translume.translator.cohort import Cohort
from translume.translator.messages import TRANSLATIONS, decode_lines, decode_settings, encode

PAUSE = 3
"""Times as long as entering has taken, no more lines enter: few at a time would cost more than their search."""

Key = tuple[int, int]
"""The number of a request and the place of a line there."""


def translate_shared(
    first: Request, translator: Callable[[], Translator], more: Callable[[], Sequence[Request]]
) -> None:
    """Translate the lines of a request, and of those that `more` returns meanwhile; send each line when it is done.

    translator: returns the model.  more: returns requests with the same model and settings.
    Every request is ended, with an error if one is raised.
    """
    sharing = {first.number: first}
    again = 0.0  # when more may enter
    left: dict[int, set[int]] = {}  # places of lines that are not done, of each request
    try:
        cohort = Cohort[Key](translator(), decode_settings(first.values["settings"]))
        entering: Sequence[Request] = [first, *more()]
        while sharing:
            for request in entering:
                sharing[request.number] = request
                left[request.number] = set(range(len(request.values["lines"])))
            if entering:
                begun = time.monotonic()
                _enter(cohort, entering)
                again = time.monotonic() + PAUSE * (time.monotonic() - begun)
            done = cohort.run(partial(_unneeded, sharing.values()))
            for request in list(sharing.values()):
                own = {place: result for (number, place), result in done.items() if number == request.number}
                _send(request, own)
                gone = left[request.number].intersection(_given_up(request))
                for place in gone:
                    cohort.remove((request.number, place))
                left[request.number] -= own.keys() | gone
                if not left[request.number]:
                    request.end()
                    del sharing[request.number]
            entering = more() if sharing and time.monotonic() >= again else ()
        cohort.close()
    except BaseException as error:  # the parent waits for all of them
        for request in sharing.values():
            request.end(error, encode_error)


def _enter(cohort: Cohort[Key], requests: Iterable[Request]) -> None:
    lines, on_progress = {}, {}
    for request in requests:
        for place, line in enumerate(decode_lines(request.values["lines"], request.body)):
            lines[request.number, place] = line
        for place in request.values["watched"]:
            on_progress[request.number, place] = partial(_send_prefix, request, place)
    cohort.enter(lines, on_progress)


def _unneeded(requests: Iterable[Request]) -> list[Key]:
    """The lines whose results the server does not need any more."""
    return [(request.number, place) for request in requests for place in _given_up(request)]


def _given_up(request: Request) -> Sequence[int]:
    return range(len(request.values["lines"])) if request.cancelled.is_set() else list(request.cancelled_parts)


def _send(request: Request, done: dict[int, Translation | TranslumeError]) -> None:
    translations = {place: result for place, result in done.items() if isinstance(result, Translation)}
    if translations:
        request.respond({"places": list(translations)}, encode(TRANSLATIONS, list(translations.values())))
    for place, result in done.items():
        if isinstance(result, TranslumeError):
            request.respond({"place": place, "error": encode_error(result)})


def _send_prefix(request: Request, place: int, text: str) -> None:
    request.respond({"place": place, "prefix": text})
