"""POST /v1/inspect: what the model believed about one sentence's translation, and how another beginning goes on.

The plain model computes, beside translating; what it may cost is bounded before it begins.
"""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from translume.serving.api import schema
from translume.serving.api.answer_schema import INSPECTED, TEXT, WORKED, answers
from translume.serving.api.body import read_object
from translume.serving.api.inspection import written
from translume.serving.api.inspection_requests import inspection
from translume.serving.server import Server
from translume.serving.workers.proxy import RemoteTranslator


def routes(server: Server) -> APIRouter:
    """/v1/inspect, and the same as a page."""
    router = APIRouter(prefix="/v1", tags=["v1"])
    traces = answers(INSPECTED, "A trace; docs/inspect.md says what is in it.", *WORKED)
    pages = answers(TEXT, "One page that needs nothing else.", *WORKED, kind="text/html")

    @router.post("/inspect", openapi_extra=schema.INSPECT, responses=traces)
    async def inspect(request: Request) -> Response:
        """What the model believed at every step of the translation of one sentence; docs/trace.schema.json."""
        return Response(await _answered(server, request, "json"), media_type="application/json")

    @router.post("/inspect/page", openapi_extra=schema.INSPECT, responses=pages, response_class=HTMLResponse)
    async def inspect_page(request: Request) -> Response:
        """The same as one HTML page that needs nothing else, to be looked at or kept."""
        return Response(await _answered(server, request, "page"), media_type="text/html")

    return router


async def _answered(server: Server, request: Request, form: str) -> str:
    """What is told of what a request asks for; writing it down takes its time too, and is done beside translating."""
    values = await read_object(request, server.limits)
    limits = server.limits
    wanted = await run_in_threadpool(inspection, values, server.models, limits)
    await server.accept(request, [each for each in (wanted.text, wanted.translation, wanted.reference) if each])
    translator = wanted.served.translator

    def work(go_on: Callable[[], None]) -> str:
        if isinstance(translator, RemoteTranslator):
            return translator.inspected(values, limits, form, go_on)
        return written(wanted, limits, form, go_on)

    return await server.aside.done(request, work, wanted.timeout_seconds)
