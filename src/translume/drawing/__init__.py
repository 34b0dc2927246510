"""Pictures of what inspection found: they read its values and compute nothing."""

from translume.drawing.page import page
from translume.drawing.terminal import lines

__all__ = ["lines", "page"]
