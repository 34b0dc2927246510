"""What a web server must allow for a page of a trace to work: its own style and script, and nothing else."""

import base64
import hashlib
import re

from translume.drawing.document import document
from translume.drawing.page import SCRIPTS


def hashes() -> tuple[str, str]:
    """What a Content-Security-Policy calls the style and the script of every page of a trace, whatever is in it."""
    html = document("", "trace.html", scripts=SCRIPTS, data={})
    return _hash(html, "<style>(.*?)</style>"), _hash(html, '<script type="module">(.*?)</script>')


def _hash(html: str, pattern: str) -> str:
    (text,) = re.findall(pattern, html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
