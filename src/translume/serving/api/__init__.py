"""The HTTP API: routes, request and response models, errors, LibreTranslate's interface."""
