"""A small example of each kind of part, which `translume new` copies under another name. Importing one adds it."""
