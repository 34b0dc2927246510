"""What is said of work that failed: to whoever asked for it, and in the log."""

import logging
import traceback

from translume.errors import TranslumeError
from translume.serving.api.errors import RequestError
from translume.serving.workers.plain import FailedElsewhereError
from translume.serving.workers.thread import WorkerLostError

log = logging.getLogger("translume.serving")


def told_as(error: BaseException) -> TranslumeError:
    """What a client hears of an error: nothing of its inside unless it was meant for people."""
    if isinstance(error, TranslumeError):
        return error
    note(error)
    if isinstance(error, WorkerLostError):
        return RequestError(500, f"{error}, at this text, for the second time; the log says more", code="worker_lost")
    name = error.kind if isinstance(error, FailedElsewhereError) else type(error).__name__
    return RequestError(500, f"the server failed at this text ({name}); its log says where")


def note(error: BaseException) -> None:
    """Write where an error came from, without its words, which may quote a text."""
    if isinstance(error, FailedElsewhereError):
        fields = {"error": error.kind, "traceback": error.places}
    else:
        fields = {"error": type(error).__name__, "traceback": "".join(traceback.format_tb(error.__traceback__))}
    log.error("work failed", extra={"fields": fields})
