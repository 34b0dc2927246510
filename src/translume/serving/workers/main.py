"""What runs in a worker process: models, and whatever takes long. It ends with the process that began it.

python -m translume.serving.workers.main SOCKET
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from translume.errors import TranslumeError
from translume.serving.access.limits import Limits
from translume.serving.api.errors import RequestError
from translume.serving.api.inspection import entropies, inspect
from translume.serving.api.requests import resolve_inspection
from translume.serving.workers.channel import Channel
from translume.serving.workers.loading import served_in, state_of
from translume.serving.workers.models import Models, Served, ServedClassifier
from translume.serving.workers.plain import (
    CLASSIFICATION,
    HYPOTHESIS,
    NUMBERS,
    SCORE,
    TRANSLATIONS,
    error_text,
    lines_of,
    result,
    settings_of,
)
from translume.serving.workers.proxy import Told
from translume.serving.workers.settled import settle
from translume.translator import Classifier, Translation, Translator
from translume.translator.engines import Computing

NICER: Final = 2
"""How much a worker lets the process that answers requests go first."""
TOGETHER: Final = 16
"""Translations of a message: each message wakes threads of the process that answers."""
LANES: Final = {
    "load": "load",
    "check": "check",
    "translate": "work",
    "score": "work",
    "classify": "work",
    "inspect": "aside",
    "entropies": "aside",
}
"""What is done in one thread after the other, by the thread; what has another one is done beside it."""


class Working:
    """Does what it is asked over a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._models: dict[str, Served | ServedClassifier] = {}
        self._left: dict[int, threading.Event] = {}
        self._lanes = {lane: ThreadPoolExecutor(1, thread_name_prefix=lane) for lane in set(LANES.values())}

    def serve(self) -> None:
        """Answer until nobody is there who asks."""
        while (message := self._channel.receive()) is not None:
            head = message.head
            number = head["call"]
            match head["do"]:
                case "leave":
                    if (left := self._left.get(number)) is not None:
                        left.set()
                case "unload":
                    # After a load of it that still goes on.
                    self._lanes["load"].submit(self._models.pop, head["key"], None)
                case what:
                    self._left[number] = threading.Event()
                    self._lanes[LANES[what]].submit(self._answer, number, head)

    def _answer(self, number: int, head: Mapping[str, Any]) -> None:
        try:
            for body in self._results(head["do"], number, head):
                self._channel.send({"call": number, "kind": "result"}, body)
            self._channel.send({"call": number, "kind": "done"})
        except BaseException as error:
            # Whoever waits is told of everything, of what would end the thread too.
            places = "".join(traceback.format_tb(error.__traceback__))
            # Where nobody is there any more, the process is about to end.
            with suppress(OSError):
                self._channel.send({"call": number, "kind": "error", "error": error_text(error, places)})
        finally:
            del self._left[number]

    def _results(self, what: str, number: int, head: Mapping[str, Any]) -> Iterator[bytes]:
        """What is sent back, piece by piece."""
        if what == "load":
            yield self._load(head).to_json()
            return
        served = self._models.get(head["key"])
        match served:
            case None:
                raise RequestError(
                    503, "the model is not there now; try later", code="model_unavailable", retry_after=10
                )
            case Served(translator=Translator() as translator):
                yield from self._translator_results(what, number, head, served, translator)
            case ServedClassifier(classifier=Classifier() as classifier):
                yield from (result(CLASSIFICATION, each) for each in classifier.classify_all(head["texts"]))

    def _translator_results(
        self, what: str, number: int, head: Mapping[str, Any], served: Served, translator: Translator
    ) -> Iterator[bytes]:
        match what:
            case "check":
                translator.check(settings_of(head["settings"]))
            case "translate":
                tell = {line: partial(self._news, number, line) for line in head["told"]}
                lines, settings = lines_of(head["lines"]), settings_of(head["settings"])
                yield from _together(translator.translate_lines(lines, settings, tell, self._go_on(number)))
            case "score":
                pairs = ((source, target) for source, target in head["pairs"])
                yield from (result(SCORE, each) for each in translator.score_all(pairs))
            case "inspect":
                limits = Limits.model_validate(head["limits"])
                wanted = resolve_inspection(head["values"], Models([served]), limits)
                yield inspect(wanted, limits, head["form"], self._go_on(number)).encode()
            case "entropies":
                target = HYPOTHESIS.validate_python(head["target"])
                settings = settings_of(head["settings"])
                yield result(NUMBERS, entropies(translator, head["source"], target, settings))

    def _load(self, head: Mapping[str, Any]) -> Told:
        folder = Path(head["folder"])
        state = state_of(folder)
        if head["state"] not in ("", state):
            raise TranslumeError(f"{folder}: another model than the one that is served; a reload takes it over")
        served = self._models[head["key"]] = served_in(head["name"], folder, Computing(**head["computing"]))
        model: Translator | Classifier
        if isinstance(served, ServedClassifier):
            assert isinstance(served.classifier, Classifier)
            model, target, labels = served.classifier, "", served.classifier.labels.to_json()
        else:
            assert isinstance(served.translator, Translator)
            model, labels = served.translator, None
            reads, writes = model.checkpoint.source_tokenizer, model.checkpoint.target_tokenizer
            target = "" if reads is writes else writes.to_json()
        return Told(
            state=state,
            facts=dict(served.facts),
            config=model.config.to_toml(),
            source=model.checkpoint.source_tokenizer.to_json(),
            target=target,
            labels=labels,
        )

    def _news(self, number: int, line: int, text: str) -> None:
        self._channel.send({"call": number, "kind": "news", "line": line, "text": text})

    def _go_on(self, number: int) -> Callable[[], None]:
        left = self._left[number]

        def go_on() -> None:
            if left.is_set():
                raise RequestError(499, "nobody waits for the answer any more")

        return go_on


def _together(found: Iterator[Translation]) -> Iterator[bytes]:
    """What is found, some at a time, also what came before an error."""
    some: list[Translation] = []
    ended: TranslumeError | None = None
    try:
        for each in found:
            some.append(each)
            if len(some) == TOGETHER:
                yield result(TRANSLATIONS, some)
                some = []
    except TranslumeError as error:
        ended = error
    if some:
        yield result(TRANSLATIONS, some)
    if ended is not None:
        raise ended


def main() -> None:
    """Work for the process at the other end of the socket whose number is the one argument."""
    # Ctrl-C, a closed terminal and a service manager tell all processes; this one ends when its channel does.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    os.nice(NICER)
    faulthandler.enable()  # where native code crashed goes to standard error, and from there into the server's log
    settle()
    Working(Channel(socket.socket(fileno=int(sys.argv[1])))).serve()
    # What goes on in threads is for nobody any more.
    os._exit(0)


if __name__ == "__main__":
    main()
