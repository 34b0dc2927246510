"""A server that answers spends no time on what it began with."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from translume.checkpoint import save_model
from translume.config import DecodingSettings
from translume.serving.api.app import build_app
from translume.serving.run import listen, serve
from translume.serving.server import Server
from translume.serving.workers.main import freeze_startup_objects
from translume.serving.workers.models import Served, ServedModels
from translume.translator import Translator, load_translator
from translume.translator.planning import Line


class EnoughError(Exception):
    """Nothing else is wanted of a server."""


@pytest.fixture
def restored() -> Iterator[None]:
    """What a server changes in its process, changed back."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


def looked_at(value: object) -> bool:
    """Whether it is looked at when garbage is looked for."""
    return any(each is value for each in gc.get_objects())


@pytest.mark.usefixtures("restored")
def test_garbage_is_not_looked_for_among_what_was_there_before_a_server_answers(translator: Translator) -> None:
    server = Server(models=ServedModels([Served.of("en-de", translator)]))
    found: list[bool] = []

    def started() -> None:
        found.extend(map(looked_at, (server.models, [server])))
        raise EnoughError

    assert looked_at(server.models)
    with listen("127.0.0.1", 0) as bound, pytest.raises(EnoughError):
        serve(build_app(server), bound, server.limits, started)
    assert found == [False, True]
    assert server.close()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_was_there_before_is_freed_once_nobody_holds_it(
    make: Callable[..., Translator], tmp_path: Path, *, compiled: bool
) -> None:
    save_model(tmp_path / "model", make().checkpoint)
    model = load_translator(tmp_path / "model", device="cpu", dtype="fp32")
    served = Served.of("en-de", model.compile() if compiled else model)
    weights = weakref.ref(next(model.checkpoint.model.parameters()))
    assert isinstance(served.translator, Translator)
    assert len(list(served.translator.translate_lines([Line(number=0, text="a b")], DecodingSettings()))) == 1
    freeze_startup_objects()
    gc.disable()
    try:
        del model, served
        assert weights() is None
    finally:
        gc.enable()
