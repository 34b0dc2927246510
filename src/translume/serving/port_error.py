"""Why a port cannot be listened at."""

import errno

from translume.errors import TranslumeError


class PortError(TranslumeError):
    """An address that cannot be listened at."""


def port_error(host: str, port: int, error: OSError, flag: str = "--port") -> PortError:
    """One line that says where, why, and what to do.  flag: that the port was given with."""
    cure = f"; stop what listens there or take another {flag}" if error.errno == errno.EADDRINUSE else ""
    # create_server adds the address to the reason; it stands at the front already.
    reason = error.strerror.partition(" (while")[0].lower() if error.strerror else str(error)
    return PortError(f"{host}:{port}: cannot listen: {reason}{cure}")
