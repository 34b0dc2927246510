"""Check responses against the server's OpenAPI document."""

import importlib
import importlib.util
import json
import re
from collections.abc import Mapping
from copy import copy
from typing import Any

# Installed with schemathesis. Without it, only status codes and content types are checked.
rules: Any = importlib.import_module("jsonschema_rs") if importlib.util.find_spec("jsonschema_rs") else None


class ResponseChecker:
    """Checks responses against a server's OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._components = document["components"]
        self._operations = [
            (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path, methods)
            for path, methods in document["paths"].items()
        ]
        self._judges: dict[str, Any] = {}
        self.seen: set[tuple[str, str, int]] = set()
        """The (method, path, status) of every response that was checked."""

    def fresh(self) -> "ResponseChecker":
        """Return a checker of the same document that has seen nothing; the validators are shared."""
        other = copy(self)
        other.seen = set()
        return other

    def problem(self, method: str, path: str, status: int, kind: str, body: bytes) -> str:
        """Return the first violation, or an empty string for none and for paths that the document does not list."""
        place = path.partition("?")[0]
        known = ((path, methods) for pattern, path, methods in self._operations if pattern.fullmatch(place))
        address, methods = next(known, ("", {}))
        if (operation := methods.get(method.lower())) is None:
            return ""
        self.seen.add((method, address, status))
        response = operation["responses"].get(str(status))
        if response is None:
            return f"{method} {place}: {status} is not described: {body[:200]!r}"
        if "content" not in response:
            return f"{method} {place}: {status} has a body: {body[:200]!r}" if body else ""
        kind = kind.partition(";")[0]
        content = response["content"].get(kind, response["content"].get("*/*"))
        if content is None:
            return f"{method} {place}: {status} in {kind!r} is not described"
        if kind != "application/json" or "schema" not in content:
            return ""
        wrong = self._wrong(content["schema"], json.loads(body))
        return f"{method} {place}: {status}: {wrong}" if wrong else ""

    def _wrong(self, schema: Mapping[str, Any], value: Any) -> str:
        if rules is None:
            return ""
        name = json.dumps(schema, sort_keys=True)
        if name not in self._judges:
            self._judges[name] = rules.validator_for({**schema, "components": self._components})
        return "; ".join(f"{each.instance_path}: {each.message}" for each in self._judges[name].iter_errors(value))
