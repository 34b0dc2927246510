"""The fast CPU engine: the interface of the plain model over weights packed for this machine."""

from translume.engine.engine import Engine, EngineError, build_engine
from translume.engine.probe import Choice
from translume.engine.selftest import Findings, self_test
from translume.engine.state import EngineState

__all__ = ["Choice", "Engine", "EngineError", "EngineState", "Findings", "build_engine", "self_test"]
