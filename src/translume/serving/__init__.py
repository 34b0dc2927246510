"""Translations over HTTP: the only room that imports a web framework."""
