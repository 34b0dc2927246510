"""The command line: one module per command, imported when the command runs."""

from translume.cli.group import main

__all__ = ["main"]
