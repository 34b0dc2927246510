"""The fast CPU engine: the interface of the plain model over weights packed for the kernels."""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.engine.classes import ClassEngine as ClassEngine
    from translume.engine.engine import Engine as Engine
    from translume.engine.engine import EngineError as EngineError
    from translume.engine.engine import build_engine as build_engine
    from translume.engine.search import Draft as Draft
    from translume.engine.search import SentenceDraft as SentenceDraft
    from translume.engine.selftest import self_test as self_test

export_late(__name__)
