"""The command line: one file a verb, imported when it is asked for."""

from translume.cli.group import main

__all__ = ["main"]
