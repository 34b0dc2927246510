"""The web pages at / and /docs, under a policy that restricts them to this server."""

from importlib.resources import files
from typing import Final

from starlette.responses import Response

from translume.inspection.pages import asset, trace_page_hashes
from translume.serving.api.errors import RequestError
from translume.serving.api.routing import ALWAYS, Routes

TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
DRAWN: Final = ("steps.css", "steps.js")
"""Files shared with the page of a trace."""
PAGES: Final = ("index.html", "docs.html")


def add_routes(routes: Routes) -> None:
    """Add the routes /, /docs, and their files below /page."""
    root = files("translume.serving.page")
    own = {path.name: path.read_bytes() for path in root.iterdir() if path.name.rpartition(".")[2] in TYPES}
    pages = {name: own.pop(name) for name in PAGES}
    contents = own | {name: asset(name).encode() for name in DRAWN}
    policy = {"Content-Security-Policy": _policy()}

    @routes.on("GET /", None, *ALWAYS, media={"text/html": None})
    async def page() -> Response:
        """Return the web page for translation."""
        return Response(pages["index.html"], media_type=TYPES["html"], headers=policy)

    @routes.on("GET /docs", None, *ALWAYS, media={"text/html": None})
    async def docs() -> Response:
        """Return the API reference as a web page."""
        return Response(pages["docs.html"], media_type=TYPES["html"], headers=policy)

    @routes.on("GET /page/{name}", None, listed=False)
    async def part(name: str) -> Response:
        if name not in contents:
            raise RequestError(404, "no such path; /openapi.json lists all paths")
        return Response(contents[name], media_type=TYPES[name.rpartition(".")[2]])


def _policy() -> str:
    """Return the Content-Security-Policy. It also allows the pages of traces, whose tabs inherit it."""
    style, script = trace_page_hashes()
    return (
        f"default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; img-src 'self' data: blob:; "
        "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
