"""An engine of a model, as far as there is one here."""

import torch

from translume.engine.engine import Engine
from translume.engine.probe import CANDIDATES, Dtype
from translume.engine.remembered import remember, remembered
from translume.errors import SettingsError, nearest
from translume.model import Transformer


class EngineError(SettingsError):
    """There is no engine for this model or machine; the plain model does all that it does."""


def build_engine(model: Transformer, dtype: Dtype = "fp32") -> Engine:
    """The fast engine of a model, its weights packed as "fp32", "bf16" or "int8".

    What a probe chose for a shape is kept in the user's cache and taken again by the next run.
    Raises EngineError where the model or its device has none.
    """
    if dtype not in CANDIDATES:
        raise EngineError(f"engine: dtype: found '{dtype}'{nearest(dtype, CANDIDATES)}")
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise EngineError(f"engine: found a model on {device}, wanted one on the CPU")
    strange = next((each.dtype for each in model.parameters() if each.dtype != torch.float32), None)
    if strange is not None:
        raise EngineError(f"engine: found a model in {strange}, wanted one in torch.float32 (load it with dtype fp32)")
    choice = remembered(dtype)
    before = dict(choice.kinds)
    engine = Engine(model, choice)
    if choice.kinds != before:
        remember(choice)
    return engine
