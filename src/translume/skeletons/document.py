"""A document format: files .my_part, each line of which is a text."""

from translume.documents import Format
from translume.documents.files import PlainText
from translume.parts import part

SAMPLE = b"One line.\n\nAnother one.\n"
"""A file to check the format with."""

part("document", ".my_part", interface=1)(Format(PlainText.from_bytes, "text/plain"))
