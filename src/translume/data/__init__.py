"""Read parallel text, clean it, count what was dropped, tokenize it once, and make batches."""
