"""Files that are translated without touching what is no text in them."""
