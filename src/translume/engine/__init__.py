"""The fast engine: a step like any other, over weights that were packed for this machine."""

from translume.engine.build import EngineError, build_engine
from translume.engine.engine import Engine
from translume.engine.probe import Choice
from translume.engine.selftest import Findings, self_test
from translume.engine.state import EngineState

__all__ = ["Choice", "Engine", "EngineError", "EngineState", "Findings", "build_engine", "self_test"]
