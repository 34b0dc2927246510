"""Documents (office documents, books, HTML, subtitles, text, messages) as translatable segments, and back."""

SUFFIXES = (
    *(".txt", ".html", ".htm", ".srt", ".vtt", ".docx", ".pptx", ".odt", ".epub", ".pdf"),
    *(".odp", ".xlsx", ".md", ".po", ".json", ".xliff", ".xlf", ".properties", ".xml", ".tmx"),
)
"""The suffixes of all formats. Reading them needs other packages, which `documents.files` imports."""
ZIPPED = frozenset({".docx", ".pptx", ".odt", ".epub", ".odp", ".xlsx"})
"""The suffixes of formats that are archives."""
