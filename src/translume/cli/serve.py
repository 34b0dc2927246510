"""translume serve"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FILE, MODEL, Compute, engine_compute_options, set_option
from translume.cli.terminal import note, warn
from translume.errors import SettingsError, refused

if TYPE_CHECKING:
    from translume.serving.settings import ServeSettings

EXAMPLES = """\b
Examples:
  translume serve models/en-de --port 8000
  translume serve --config serve.toml

\b
serve.toml may be:
  keys.file = "keys.json"          # made by `translume keys add keys.json NAME`
  metrics = "9100"                 # metrics for Prometheus, on loopback
  [models]
  en-de = "models/en-de"
  [limits]
  characters = 5000
"""


@click.command("serve", short_help="Serve models over HTTP.", epilog=EXAMPLES)
@click.argument("models", type=MODEL, nargs=-1, metavar="[MODEL]...")
@click.option("--config", type=FILE, metavar="FILE", help="Settings (`translume docs settings`): serve.toml.")
@click.option("--host", metavar="ADDRESS", help="0.0.0.0 for all interfaces; unix:PATH.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="0 for any free port.  [default: 8000]")
@click.option("--host-name", multiple=True, metavar="NAME", help="Accept requests for this host; repeatable.")
@click.option("--keys", type=FILE, metavar="FILE", help="Require API keys; see `translume keys`.")
@click.option("--metrics", metavar="PORT", help="Serve metrics for Prometheus at PORT or ADDRESS:PORT.")
@click.option(
    "--workers", type=click.IntRange(1, 256), metavar="N", help="Processes that hold the models.  [default: 1]"
)
@set_option
@engine_compute_options
def command(
    models: tuple[Path, ...],
    config: Path | None,
    host: str | None,
    port: int | None,
    host_name: tuple[str, ...],
    keys: Path | None,
    metrics: str | None,
    workers: int | None,
    overrides: tuple[str, ...],
    compute: Compute,
) -> None:
    """Serve one or more models over HTTP.

    A model is named after its folder; NAME=MODEL chooses another name. /docs documents the API; `translume docs
    serving` has examples. SIGHUP reloads settings, keys and models. On Ctrl-C or SIGTERM the server finishes the
    requests in progress and exits.
    """
    from translume.serving.api.app import build_app
    from translume.serving.files.storage import PrivateFolder
    from translume.serving.front import Front, WorkerOptions, serve_front
    from translume.serving.metrics import serve_metrics
    from translume.serving.reloading import Reloader, lanes_of, open_server, reload_on_hangup
    from translume.serving.run import UNIX, address_of, listen, log_to_stderr, release, serve
    from translume.serving.settings import place_of
    from translume.text.detection import installed_detector

    given = {"host": host, "port": port, "host_names": host_name or None, "metrics": metrics, "keys.file": keys}
    read = _settings_reader(config, {**given, "workers": workers}, models, overrides)
    settings = read()
    # Checks that the port is free. Listens after loading, so that a load balancer uses other replicas until then.
    listening = partial(listen, settings.host, settings.port, socket_mode=settings.socket_mode)
    release(listening(), settings.host)
    proxies = ("*",) if settings.host.startswith(UNIX) else settings.proxies
    log_to_stderr()
    lanes, computing = lanes_of(settings.workers, compute.to_load())
    with interrupt_hint("Stopped."), ExitStack() as stack:

        def bind(registry: Any) -> socket.socket:
            """Serve the metrics, and return the socket of the server."""
            if settings.metrics:
                at, wanted = place_of(settings.metrics)
                counted = stack.enter_context(serve_metrics(registry, at, wanted))
                note(f"metrics for Prometheus at http://{address_of(at, counted)}/metrics")
            bound = listening()
            stack.callback(release, bound, settings.host)
            unix = settings.host.startswith(UNIX)
            address.append(settings.host if unix else f"http://{address_of(settings.host, bound.getsockname()[1])}")
            return bound

        def started() -> None:
            if not settings.keys.file and not _is_loopback(settings.host):
                warn(f"warning: anyone who can reach {settings.host} can use the server; --keys requires API keys")
            note(f"serving {', '.join(settings.models)} at {address[0]}")

        address: list[str] = []
        if settings.workers > 1:
            private = PrivateFolder()
            with refused("--workers", "no temporary folder can be made", SettingsError):
                options = WorkerOptions(read=read, computing=computing, lanes=lanes, folder=private.path)
            front = Front(options, settings.limits, private)
            listener = partial(bind, front.metrics.registry)
            asyncio.run(serve_front(front, settings.workers, listener, proxies, started))
            return
        server, loader = open_server(settings, computing, lanes)
        reloader = Reloader(server, loader, read)
        stack.callback(reloader.close)
        reload_on_hangup(reloader.request)
        app = build_app(server, detector=installed_detector())
        serve(app, bind(server.metrics.registry), server.limits, started, proxies)


def _settings_reader(
    config: Path | None,
    options: dict[str, str | int | Path | tuple[str, ...] | None],
    models: tuple[Path, ...],
    overrides: tuple[str, ...],
) -> "Callable[[], ServeSettings]":
    """Return a function that reads the settings file again and applies the options of the command line."""
    from translume.config.base import literal

    flags = [f"{name}={literal(value)}" for name, value in options.items() if value is not None]
    named: dict[str, str] = {}
    for name, folder in map(_named, models):
        if name in named:
            raise SettingsError(f"{name}: two models have this name; rename one with NAME=MODEL")
        named[name] = str(folder)
    return partial(_read, config, (*flags, *overrides), named)


def _read(config: Path | None, assignments: tuple[str, ...], named: dict[str, str]) -> "ServeSettings":
    from translume.checkpoint import model_folder
    from translume.checkpoint.folder import is_cached_import
    from translume.serving.settings import ServeSettings

    settings = ServeSettings.read(config, assignments)
    models = {name: str(model_folder(source)) for name, source in (named or settings.models).items()}
    changes: dict[str, Any] = {"models": models}
    if any(is_cached_import(folder) for folder in models.values()):
        changes |= {"on_demand": True, "pivot": settings.pivot or "en"}
    return settings.model_copy(update=changes).must_have_models()


def _named(model: Path) -> tuple[str, Path]:
    """Return a model's name and folder."""
    name, equals, folder = str(model).partition("=")
    if equals and name and "/" not in name and not model.exists():
        return name, Path(folder)
    from translume.checkpoint.folder import DEMO

    return DEMO.stem if model == DEMO else model.resolve().name, model


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith(("127.", "unix:"))
