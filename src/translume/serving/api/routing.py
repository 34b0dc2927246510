"""Routes of the HTTP API: a body is read as the model of a request, and what a route returns is written as JSON.

Both are described in /openapi.json, with the error statuses of the route.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, get_args

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from translume.serving.access.quotas import ACCESS, ADMITTED, Access, is_open
from translume.serving.api.body import FORM, JSON, LIMITS, URL_ENCODED, ApiRequest, media_type
from translume.serving.api.errors import STATUSES, json_response, unsupported_type
from translume.serving.api.requests import RequestBody

ALWAYS: Final = (421, 500, 503)
"""Error statuses of every route."""
KEYED: Final = (400, 401, 403, *ALWAYS)
"""Error statuses of a route that requires a key."""
READ: Final = (408, 413, 415, 429, *KEYED)
"""Error statuses of a route that reads a body and charges it to a key."""
WORKED: Final = (404, 422, 504, *READ)
"""Error statuses of a route of API v1 that uses a model."""
RETRY_AFTER: Final = {"description": "Seconds after which to try again.", "schema": {"type": "integer", "minimum": 0}}
REFUSED: Final = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}

TAGS: Final = {
    **{"/v1/audio/": "OpenAI", "/v1/": "v1", "/v2/": "DeepL", "/health/": "operations"},
    **dict.fromkeys(("/translate", "/detect", "/languages", "/frontend", "/health", "/suggest"), "LibreTranslate"),
    "/download_file/": "LibreTranslate",
}
"""The tags of routes, by the beginnings of their paths. The others are pages."""

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


class Routes(APIRouter):
    """Routes whose requests are read within the limits of their server."""

    def __init__(self) -> None:
        super().__init__(route_class=_Route)

    def on(
        self,
        operation: str,
        returns: Any,
        *statuses: int,
        media: Mapping[str, type[BaseModel] | None] | None = None,
        status: int = 200,
        listed: bool = True,
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that makes a coroutine the route of an operation, such as "GET /v1/files/{name}".

        Of `request`, `call` and the parts of the path it gets those that it names. `call` is the request's body, one
        of the models in its annotation. It returns a JSON value or a `Response`.

        returns: describes the value in /openapi.json; None if it is no JSON.  statuses: of errors.
        media: other media types of the response; None for text or the bytes of a file.  status: of the response.
        listed: whether /openapi.json has it.
        """
        method, path = operation.split()

        def add(handler: Handler) -> Handler:
            wanted = inspect.get_annotations(handler)
            models = [each for each in get_args(wanted.get("call")) or [wanted.get("call")] if each is not None]

            async def endpoint(request: Request) -> Response:
                LIMITS.set(request.app.state.server.limits)
                read = ApiRequest(request.scope, request.receive)
                given = {"request": read, **request.path_params}
                try:
                    if models:
                        given["call"] = await _body(read, models)
                    value = await handler(**{name: given[name] for name in wanted if name in given})
                finally:
                    await read.close()
                return value if isinstance(value, Response) else json_response(value, status)

            endpoint.__name__, endpoint.__doc__ = handler.__name__, handler.__doc__
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=returns,
                status_code=status,
                response_class=Response if returns is None else JSONResponse,
                responses=_described(status, media or {}, statuses),
                openapi_extra=_taken(path, models),
                tags=[next((tag for prefix, tag in TAGS.items() if path.startswith(prefix)), "page")],
                include_in_schema=listed,
            )
            return handler

        return add


class _Route(APIRoute):
    """A route that reads the request itself."""

    def get_route_handler(self) -> Any:
        """Return the endpoint."""
        return self.endpoint


async def _body(request: ApiRequest, models: "list[type[RequestBody]]") -> RequestBody:
    """Return the body of a request, as the model for its media type; its key may be among the fields."""
    kind = media_type(request)
    model = next((each for each in models if {kind, URL_ENCODED} & {*each.kinds}), None)
    if model is None:
        expected = models[0].kinds[0]
        raise unsupported_type(kind, f"{expected} with a part 'file'" if expected == FORM else expected)
    values = await request.fields(query=URL_ENCODED in model.kinds)
    access: Access | None = request.scope.get(ACCESS)
    if access is not None and ADMITTED not in request.scope:
        secret = values.get("api_key") or values.get("auth_key")
        await access.admit(request.scope, secret if isinstance(secret, str) else "")
    return model.read(values)


def _described(
    status: int, media: Mapping[str, type[BaseModel] | None], statuses: tuple[int, ...]
) -> dict[int | str, dict[str, Any]]:
    """Describe the responses of a route."""
    described: dict[int | str, dict[str, Any]] = {
        each: {"description": STATUSES[each][1], "content": REFUSED}
        | ({"headers": {"Retry-After": RETRY_AFTER}} if each in (429, 456, 503) else {})
        for each in sorted(set(statuses))
    }
    if media:
        schemas = {kind: model.model_json_schema() if model else {"type": "string"} for kind, model in media.items()}
        described[status] = {"content": {kind: {"schema": schema} for kind, schema in schemas.items()}}
    return described


def _taken(path: str, models: "list[type[RequestBody]]") -> dict[str, Any]:
    """Describe the parts of a path, and the body of a request."""
    parts = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    content: dict[str, Any] = {
        kind: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
        | ({"example": model.example} if kind == model.kinds[0] else {})
        for model in models
        for kind in model.kinds
    }
    body: dict[str, Any] = {"requestBody": {"required": True, "content": content}} if content else {}
    if not is_open(path):
        body["security"] = [{"key": []}, {}]  # it is optional: the server may not require one
    return body | ({"parameters": parts} if parts else {})
