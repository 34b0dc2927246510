"""Documents (docx, HTML, subtitles, plain text) as translatable segments, and back."""
