"""A folder's model as it is to compute: where, in which numbers, with an engine or without."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from translume.engine import EngineError, self_test
from translume.errors import SettingsError
from translume.translator.translator import Translator, load_translator

EngineName = Literal["auto", "fast", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How a model computes.  engine: "fast" steps with weights packed for this machine, "plain" is the model itself.

    "auto" is fast where its self-test passes.  threads: None for as many as the machine has.
    """

    engine: EngineName = "auto"
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    threads: int | None = None

    @property
    def plain_dtype(self) -> Literal["auto", "fp32", "bf16"]:
        """The dtype of what has no engine; SettingsError if it is one that only an engine has."""
        if self.dtype == "int8":
            raise SettingsError("dtype: found 'int8', wanted auto, fp32 or bf16; int8 is for translators")
        return self.dtype


def translator_in(folder: Path, computing: Computing) -> Translator:
    """The translator of a folder; SettingsError where what is asked for is not to be had."""
    device, threads = computing.device, computing.threads
    if computing.dtype == "int8":
        if computing.engine == "plain":
            raise SettingsError("dtype: found 'int8' with --engine plain, wanted auto, fp32 or bf16")
        return load_translator(folder, device=device, dtype="fp32", threads=threads).compile("int8")
    if computing.engine == "plain":
        return load_translator(folder, device=device, dtype=computing.dtype, threads=threads)
    # An engine packs weights itself, in any dtype, of a model in fp32.
    dtype: Literal["fp32", "bf16"] = "bf16" if computing.dtype == "bf16" else "fp32"
    whole = "fp32" if computing.engine == "fast" or dtype == "bf16" else computing.dtype
    translator = load_translator(folder, device=device, dtype=whole, threads=threads)
    if computing.engine == "fast":
        return translator.compile(dtype)
    sound = _if_sound(translator, dtype)
    if sound.engine is None and dtype == "bf16":
        return load_translator(folder, device=device, dtype=dtype, threads=threads)
    return sound


def _if_sound(translator: Translator, dtype: Literal["fp32", "bf16"]) -> Translator:
    """The translator with an engine if there is one and it agrees with the plain model, else as it is."""
    try:
        compiled = translator.compile(dtype)
    except EngineError:
        return translator
    if compiled.engine is None or not self_test(compiled.engine, translator.checkpoint.model, alone=False).agrees:
        return translator
    return compiled
