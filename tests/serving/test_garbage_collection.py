"""Objects created at startup are excluded from garbage collection, and replaced models are still freed."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from translume.checkpoint import save_model
from translume.config import DecodingSettings
from translume.kernels.loading import has_kernels
from translume.serving.api.app import build_app
from translume.serving.models import ServedModel, ServedModels
from translume.serving.run import freeze_startup_objects, listen, serve
from translume.serving.server import Server
from translume.translator import Translator, load
from translume.translator.planning import Line


class EnoughError(Exception):
    """Raised to end the server as soon as it has started."""


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore the settings of the process that a server changes."""
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    gc.unfreeze()


def is_garbage_collected(value: object) -> bool:
    """Return whether the garbage collector tracks an object."""
    return any(each is value for each in gc.get_objects())


@pytest.mark.usefixtures("restored")
def test_objects_created_before_startup_are_excluded_from_garbage_collection(translator: Translator) -> None:
    server = Server(models=ServedModels([ServedModel.from_model("en-de", translator)]))
    found: list[bool] = []

    def started() -> None:
        found.extend(map(is_garbage_collected, (server.models, [server])))
        raise EnoughError

    assert is_garbage_collected(server.models)
    with listen("127.0.0.1", 0) as bound, pytest.raises(EnoughError):
        serve(build_app(server), bound, server.limits, started)
    assert found == [False, True]
    assert server.close()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_loaded_before_startup_is_freed_after_its_last_reference(
    make: Callable[..., Translator], tmp_path: Path, *, compiled: bool
) -> None:
    save_model(tmp_path / "model", make(width=32, feed_forward=48, attention_heads=2).checkpoint)
    model = load(tmp_path / "model", device="cpu", dtype="fp32", engine="auto" if compiled else "plain")
    served = ServedModel.from_model("en-de", model)
    assert (model.engine is not None) == (compiled and has_kernels())
    weights = weakref.ref(next(model.checkpoint.model.parameters()) if model.engine is None else model.engine.decoder)
    assert isinstance(served.model, Translator)
    assert len(list(served.model.translate_lines([Line(number=0, text="a b")], DecodingSettings()))) == 1
    freeze_startup_objects()
    gc.disable()
    try:
        del model, served
        assert weights() is None
    finally:
        gc.enable()
