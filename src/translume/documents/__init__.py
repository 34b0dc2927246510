"""Documents (office documents, books, HTML, subtitles, text) as translatable segments, and back."""

SUFFIXES = (".txt", ".html", ".htm", ".srt", ".vtt", ".docx", ".pptx", ".odt", ".epub", ".pdf")
"""The suffixes of all formats. Reading them needs other packages, which `documents.files` imports."""
ZIPPED = frozenset({".docx", ".pptx", ".odt", ".epub"})
"""The suffixes of formats that are archives."""
