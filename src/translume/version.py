"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("translume")
except PackageNotFoundError:
    __version__ = "0+unknown"
