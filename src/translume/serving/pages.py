"""The page at /: files of ours and no others, under a policy that lets it ask this server and nobody else."""

from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from translume.drawing.document import asset
from translume.drawing.policy import hashes
from translume.serving.request_error import RequestError

TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
OWN: Final = (
    *("choice.js", "files.js", "history.js", "icon.svg", "lines.js", "output.js", "page.css", "page.js"),
    *("sentence.js", "server.js", "step.js", "storage.js", "theme.js", "translating.js"),
)
DRAWN: Final = ("steps.css", "steps.js")
"""What the page of a trace is drawn with too."""


def routes() -> APIRouter:
    """/ and what it is made of, below /page."""
    router = APIRouter(tags=["page"])
    root = files("translume.serving").joinpath("page")
    contents = {name: root.joinpath(name).read_bytes() for name in OWN} | {name: asset(name).encode() for name in DRAWN}
    index = root.joinpath("index.html").read_bytes()
    policy = _policy()

    @router.head("/", include_in_schema=False)
    @router.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        """A page for people."""
        return Response(index, media_type=TYPES["html"], headers={"Content-Security-Policy": policy})

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
