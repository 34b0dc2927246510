"""The pages at / and /docs: files of ours and no others, under a policy that lets them ask this server alone."""

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from translume.drawing.document import asset
from translume.drawing.policy import hashes
from translume.serving.api.answer_schema import ALWAYS, TEXT, answers
from translume.serving.api.errors import RequestError

TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
OWN: Final = (
    *("asking.js", "choice.js", "docs.css", "docs.js", "files.js", "history.js", "icon.svg", "lines.js", "output.js"),
    *("page.css", "page.js", "sentence.js", "server.js", "shape.js", "step.js", "storage.js", "theme.js"),
    *("theming.js", "translating.js"),
)
DRAWN: Final = ("steps.css", "steps.js")
"""What the page of a trace is drawn with too."""
PAGES: Final = ("index.html", "docs.html")


def routes() -> APIRouter:
    """/, /docs and what they are made of, below /page."""
    router = APIRouter(tags=["page"])
    root = files("translume.serving.page")
    contents = {name: root.joinpath(name).read_bytes() for name in OWN} | {name: asset(name).encode() for name in DRAWN}
    pages = {name: root.joinpath(name).read_bytes() for name in PAGES}
    policy = {"Content-Security-Policy": _policy()}
    described = answers(TEXT, "The page.", *ALWAYS, kind="text/html")

    @router.head("/", include_in_schema=False)
    @router.get("/", response_class=HTMLResponse, responses=described)
    async def page() -> Response:
        """A page for people."""
        return Response(pages["index.html"], media_type=TYPES["html"], headers=policy)

    @router.head("/docs", include_in_schema=False)
    @router.get("/docs", response_class=HTMLResponse, responses=described)
    async def docs() -> Response:
        """This document, for people."""
        return Response(pages["docs.html"], media_type=TYPES["html"], headers=policy)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in contents:
            raise RequestError(404, "no such address; /openapi.json lists all there are")
        return Response(contents[name], media_type=TYPES[name.rpartition(".")[2]])

    return router


def _policy() -> str:
    """What the page may load and ask; its tabs, which show traces, inherit it, so their script and style are named."""
    style, script = hashes()
    return (
        f"default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
