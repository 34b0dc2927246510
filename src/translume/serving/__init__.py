"""HTTP server: the only package that imports a web framework."""
