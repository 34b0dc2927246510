"""The web page at / and the API reference at /docs."""
