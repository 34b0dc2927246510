"""Documents (docx, HTML, subtitles, plain text) as translatable segments, and back."""

SUFFIXES = (".txt", ".html", ".htm", ".srt", ".vtt", ".docx")
"""The suffixes of all formats. Reading them needs other packages, which `documents.files` imports."""
ZIPPED = frozenset({".docx"})
"""The suffixes of formats that are archives."""
