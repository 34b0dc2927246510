"""The devices that networks compute on: their names, their number formats, and their memory.

CPUs and NVIDIA GPUs are supported. Apple's GPUs (MPS) and AMD's (ROCm, which torch calls CUDA too) are untested, and
accepted with a note; devices of other kinds are refused.
"""

import os
import re
import time
import warnings
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from translume.errors import SettingsError
from translume.lazy import is_imported, torch

NAMES = "auto, cpu, cuda or cuda:N"
GIB = 1 << 30
USAGE_SECONDS = 1.0
"""Minimum time between two readings of the memory and the utilisation of a GPU."""

_NO_CUDA, _NO_DRIVER, _HIDDEN = "torch is built without CUDA", "there is no NVIDIA driver", "CUDA_VISIBLE_DEVICES is "
_ABSENT = "torch finds no CUDA device"
_NAME = re.compile(r"auto|(cpu|cuda|mps)(:\d+)?")
_GPU = re.compile("nvidia|kfd|dxg|nvhost|nvmap|nvgpu")
"""Beginnings of names in /dev: of NVIDIA's driver, of AMD's, of GPUs in Windows' Linux, and of Jetsons."""


def choose_device(name: str) -> "torch.device":
    """Return the device of a name; a CUDA device has its index.

    "auto" is the CUDA device with the most free memory, or the CPU if none can be used. "cuda" is torch's current one.
    Raises SettingsError for an unknown name, and for a device that is missing or not supported.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SettingsError(f"device: found {name!r}, expected {NAMES}")
    if name == "auto":
        return _best()
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"device: found '{name}', expected {NAMES}") from None
    if device.type == "cuda":
        return _cuda(name, device)
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise _refusal(name, "torch finds no Apple GPU here")
        _note("mps: this kind of device is untested; it computes in fp32")
    return device


def make_current(device: "torch.device") -> None:
    """Make a device the one that torch means by "cuda" in this thread. Raises SettingsError if it cannot be used."""
    if device.type == "cuda":
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:
            raise _refusal(str(device), _reason(error)) from None


def is_cpu(name: str) -> bool:
    """Return whether a name is that of a CPU. Unlike `choose_device` it takes no memory of a GPU."""
    return needs_no_torch(name) or (name == "auto" and bool(_cuda_fault()))


def needs_no_torch(name: str) -> bool:
    """Return whether a name is known to be that of a CPU without asking torch.

    "auto" is, if torch is not imported and either it is not installed or this system shows no GPU that CUDA, ROCm or a
    Jetson has.
    """
    if name != "auto" or is_imported():
        return name == "cpu"
    return find_spec("torch") is None or not any(_GPU.match(file) for file in os.listdir("/dev"))


def _best() -> "torch.device":
    """Return the CUDA device with the most free memory, the first of equal ones; the CPU if none can be used."""
    fault = _cuda_fault()
    free = dict[int, int]()
    for index in [] if fault else range(torch.cuda.device_count()):
        try:
            fault = _missing_kernels(index)
            if not fault:
                free[index] = torch.cuda.mem_get_info(index)[0]
        except RuntimeError as error:  # such as a card that another process has for itself
            fault = _reason(error)
    if free:
        return _noted(torch.device("cuda", max(free, key=free.__getitem__)))
    if not fault.startswith((_NO_CUDA, _NO_DRIVER, _HIDDEN, _ABSENT)):  # else there is no GPU, or the user hides it
        _note(f"{fault}; computing on the CPU")
    return torch.device("cpu")


def _cuda(name: str, device: "torch.device") -> "torch.device":
    """Return a CUDA device that the user names, with its index. Raises SettingsError if it cannot be used."""
    if fault := _cuda_fault():
        raise _refusal(name, fault)
    count = torch.cuda.device_count()
    try:
        index = torch.cuda.current_device() if device.index is None else device.index
        fault = _missing_kernels(index) if index < count else ""
    except RuntimeError as error:
        raise _refusal(name, _reason(error)) from None
    if index >= count:
        known = [f"cuda:{each}" for each in range(count)]
        some = " or ".join(known) if count < 3 else f"{known[0]} to {known[-1]}"
        raise SettingsError(f"device: {name}: found {count} CUDA device{'s'[: count != 1]}, expected {some}")
    if fault:
        raise _refusal(name, fault)
    return _noted(torch.device("cuda", index))


def _cuda_fault() -> str:
    """Return why torch has no CUDA device; empty if it has one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns in several lines
            if torch.cuda.is_available():
                return ""
        if torch.version.cuda is None and torch.version.hip is None:
            return _NO_CUDA
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's has no types. It raises an error that says why.
    except RuntimeError as error:
        return _reason(error)
    return _ABSENT


def _reason(error: RuntimeError) -> str:
    """Return torch's reason for not using CUDA in one line."""
    text = str(error).partition("\n")[0]
    hides = os.environ.get("CUDA_VISIBLE_DEVICES")
    if "driver on your system is too old" in text:
        version = text.partition("found version ")[2].partition(")")[0]
        return f"the NVIDIA driver is too old for this torch (found version {version}); update one of them"
    if "Found no NVIDIA driver" in text:
        return _NO_DRIVER
    if "No CUDA GPUs are available" in text:
        return _ABSENT if hides is None else f"{_HIDDEN}'{hides}'"
    if "out of memory" in text:
        return "no memory of it is free"
    return f"CUDA cannot be used: {text}"


def _refusal(name: str, reason: str) -> SettingsError:
    return SettingsError(f"device: found '{name}', but {reason}; expected auto or cpu")


def _missing_kernels(index: int) -> str:
    """Return why torch's kernels do not run on a card; empty if they do."""
    if torch.version.cuda is None:  # ROCm
        return ""
    built = [int(name[3:].rstrip("af")) for name in torch.cuda.get_arch_list() if name.startswith("sm_")]
    major, minor = torch.cuda.get_device_capability(index)
    if not built or 10 * major + minor >= min(built):
        return ""
    least = f"{min(built) // 10}.{min(built) % 10}"
    named = describe(torch.device("cuda", index))
    return f"{named} has compute capability {major}.{minor} and this torch needs {least}; install an older torch"


def _noted(device: "torch.device") -> "torch.device":
    if torch.version.hip is not None:
        _note(f"{describe(device)}: ROCm is untested")
    return device


@cache
def _note(text: str) -> None:
    """Log a line, once in a process."""
    import logging

    logging.getLogger(__name__).warning("%s", text)


def describe(device: "torch.device") -> str:
    """Return a device's name, with the model of a GPU: "cuda:0 (Tesla T4)"."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


# ---- number formats


def supports_bf16(device: "torch.device") -> bool:
    """Return whether a GPU multiplies bf16 matrices: from compute capability 8.0 on.

    torch.cuda.is_bf16_supported() also counts emulation, which is many times slower than fp32.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def supports_fp16(device: "torch.device") -> bool:
    """Return whether a GPU multiplies fp16 matrices faster than fp32 ones: from compute capability 7.0 on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


# ---- memory


def free_bytes(device: "torch.device") -> int:
    """Return the memory of a card that this process can still get, what its allocator keeps included.

    Raises SettingsError if the card cannot be used.
    """
    try:
        free, _ = torch.cuda.mem_get_info(device)
    except RuntimeError as error:
        raise _refusal(str(device), _reason(error)) from None
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_memory(device: "torch.device", needed: int, *, what: str, advice: str, about: int | None = None) -> None:
    """Raise SettingsError if a GPU has less than `needed` bytes free. Memory of other devices is not counted.

    what: needs the memory, such as "this training".  about: bytes to name in the message instead of `needed`.
    """
    if device.type == "cuda" and (free := free_bytes(device)) < needed:
        most = (needed if about is None else about) / GIB
        raise SettingsError(f"{device}: {free / GIB:.1f} GiB free, {what} needs about {most:.1f} GiB; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The use of a GPU; each value is None where it is not known.

    memory_gib: what this process has allocated or keeps.  card_memory_gib: what all processes use.
    utilization_percent: share of the last second or less in which a kernel ran; needs the package nvidia-ml-py.
    """

    memory_gib: float | None = None
    card_memory_gib: float | None = None
    utilization_percent: int | None = None


class UsageMeter:
    """Reads the use of a GPU, at most once in `USAGE_SECONDS`. It does not wait for the GPU."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._usage, self._read = Usage(), float("-inf")
        self._has_utilization = True

    def read(self) -> Usage:
        """Return the use at the last reading; nothing is known of devices other than CUDA's."""
        if self._device.type == "cuda" and time.monotonic() - self._read >= USAGE_SECONDS:
            free, total = torch.cuda.mem_get_info(self._device)
            self._usage = Usage(
                memory_gib=round(torch.cuda.memory_reserved(self._device) / GIB, 3),
                card_memory_gib=round((total - free) / GIB, 3),
                utilization_percent=self._utilization(),
            )
            self._read = time.monotonic()
        return self._usage

    def _utilization(self) -> int | None:
        """Return the utilisation in per cent; after a first failure always None."""
        if self._has_utilization:
            try:
                return torch.cuda.utilization(self._device)
            except (ImportError, RuntimeError, _nvml_error()):
                self._has_utilization = False
        return None


def _nvml_error() -> type[Exception]:
    """Return the class of the errors of NVML, for cards that do not count their utilisation."""
    error: type[Exception] = getattr(getattr(torch.cuda, "pynvml", None), "NVMLError", RuntimeError)
    return error
