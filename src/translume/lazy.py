"""torch, imported when it is first used, since most translating needs none; where it is not installed, `tensors`.

For type checkers, `torch`, `Tensor`, `inference_mode` and `no_grad` are torch and its own. At run time, reading an
attribute of `torch` imports it, `Tensor` serves annotations and `isinstance`, and the contexts import nothing.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial, wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import isgeneratorfunction
from threading import local
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec

from translume.errors import SettingsError

P = ParamSpec("P")


def is_installed() -> bool:
    """Return whether torch can be imported."""
    return is_imported() or ("torch" not in sys.modules and find_spec("torch") is not None)


def is_imported() -> bool:
    """Return whether this process has imported torch."""
    return sys.modules.get("torch") is not None


class _Torch(ModuleType):
    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(import_module("torch"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            operations = import_module("translume.tensors").NAMES
            if name in operations:
                return operations[name]
            raise SettingsError("this needs torch, which is not installed; pip install 'translume[train]'") from None
        waiting, _thread.waiting = _thread.waiting, []
        for context in waiting:
            context.begin()
        setattr(self, name, value)  # found without this method from now on
        return value


class _Thread(local):
    """waiting: the contexts of this thread that were entered before torch was imported, outermost first."""

    def __init__(self) -> None:
        self.waiting: list[_Context] = []


_thread = _Thread()


class _Context:
    """A context of torch by its name; if torch is not imported yet, it begins when this thread imports it.

    As a decorator of a generator function, it holds while the generator runs, not while its reader does.
    """

    def __init__(self, name: str) -> None:
        self._name, self._stack = name, ExitStack()

    def begin(self) -> None:
        self._stack.enter_context(getattr(torch, self._name)())

    def __enter__(self) -> None:
        if is_imported():
            self.begin()
        else:
            _thread.waiting.append(self)

    def __exit__(self, *error: object) -> None:
        if self in _thread.waiting:
            _thread.waiting.remove(self)
        self._stack.close()

    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _Context(self._name):
                return function(*args, **kwargs)

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            resume, sent = generator.send, None
            while True:
                try:
                    with _Context(self._name):
                        value = resume(sent)
                except StopIteration as end:
                    return end.value
                try:
                    resume, sent = generator.send, (yield value)
                except BaseException as error:  # the reader's, or GeneratorExit when it closes the generator
                    resume, sent = generator.throw, error

        return generate if isgeneratorfunction(function) else run


class _IsTensor(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (torch if is_imported() else import_module("translume.tensors")).Tensor)


if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
    from torch import inference_mode as inference_mode
    from torch import no_grad as no_grad
else:
    torch = _Torch("torch")
    inference_mode, no_grad = partial(_Context, "inference_mode"), partial(_Context, "no_grad")

    class Tensor(metaclass=_IsTensor):
        """Stands for torch.Tensor."""
