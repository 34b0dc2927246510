"""translume serve"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from translume.cli.group import interrupt_hint
from translume.cli.options import FILE, MODEL, Compute, engine_compute_options, set_option
from translume.cli.terminal import note, warn
from translume.errors import SettingsError

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
@click.option("--config", type=FILE, metavar="FILE", help="Settings, as docs/settings.md lists them: serve.toml.")
@click.option("--host", metavar="ADDRESS", help="0.0.0.0 for all interfaces.  [default: 127.0.0.1]")
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

    A model is named after its folder; NAME=MODEL chooses another name. /docs documents the API; docs/serving.md has
    examples. SIGHUP reloads settings, keys and models. On Ctrl-C or SIGTERM the server finishes the requests in
    progress and exits.
    """
    try:
        from translume.serving.access.quotas import open_access
        from translume.serving.api.app import build_app
        from translume.serving.api.languages import installed_detector
        from translume.serving.run import listen, log_to_stderr, serve
        from translume.serving.server import Server
        from translume.serving.settings import place_of
        from translume.serving.workers.loading import Loader, with_manifest
        from translume.serving.workers.pool import PLACES, WorkerPool, lanes_of
        from translume.serving.workers.reloading import Reloader, reload_on_hangup
    except ModuleNotFoundError as error:
        raise SettingsError(f"serve: {error.name} is not installed; pip install 'translume[serve]'") from None

    given = {
        **{"host": host, "port": port, "host_names": host_name or None, "metrics": metrics, "keys.file": keys},
        "limits.workers": workers,
    }
    read = _settings_reader(config, given, models, overrides)
    settings = read()
    access = open_access(settings.keys)
    # Checks that the port is free. Listens after loading, so that a load balancer uses other replicas until then.
    listen(settings.host, settings.port).close()
    log_to_stderr()
    with interrupt_hint("Stopped."), ExitStack() as stack:
        lanes, computing = lanes_of(settings.lanes, settings.limits.workers, compute.to_load())
        pool = stack.enter_context(
            WorkerPool(settings.limits.workers, computing, lanes=lanes, standby=settings.standby)
        )
        loader = Loader(with_manifest(pool.load))
        server = Server(
            models=loader.load_all({name: Path(folder) for name, folder in settings.models.items()}),
            limits=settings.limits,
            access=access,
            cors_origins=settings.cors_origins,
            public_address=settings.public_address,
            host_names=settings.hosts,
            batches_per_lane=PLACES,
            lanes=lanes,
            log_text=settings.log_text,
            log_clients=settings.log_clients,
        )
        pool.on_lost = server.metrics.workers_lost.inc
        bound = stack.enter_context(listen(settings.host, settings.port))
        if settings.metrics:
            counted = place_of(settings.metrics)
            at = stack.enter_context(server.metrics.serve(*counted))
            note(f"metrics for Prometheus at {_address(counted[0], at)}/metrics")
        reloader = Reloader(server, loader, settings, read)
        stack.callback(reloader.close)
        reload_on_hangup(reloader.request)
        if access is None and not _is_loopback(settings.host):
            warn(f"warning: anyone who can reach {settings.host} can use the server; --keys requires API keys")
        message = f"serving {', '.join(settings.models)} at {_address(settings.host, bound.getsockname()[1])}"
        serve(
            build_app(server, detector=installed_detector()),
            bound,
            server.limits,
            partial(note, message),
            settings.proxies,
        )


def _settings_reader(
    config: Path | None,
    given: dict[str, str | int | Path | tuple[str, ...] | None],
    models: tuple[Path, ...],
    overrides: tuple[str, ...],
) -> "Callable[[], ServeSettings]":
    """Return a function that reads the settings file again and applies the options of the command line."""
    from translume.checkpoint import model_folder
    from translume.config.base import literal
    from translume.serving.settings import ServeSettings

    flags = [f"{name}={literal(value)}" for name, value in given.items() if value is not None]
    assignments = (*flags, *overrides)
    named: dict[str, str] = {}
    for name, folder in map(_named, models):
        if name in named:
            raise SettingsError(f"{name}: two models have this name; rename one with NAME=MODEL")
        named[name] = str(folder)

    def read() -> ServeSettings:
        settings = ServeSettings.read(config, assignments)
        models = {name: str(model_folder(source)) for name, source in (named or settings.models).items()}
        return settings.model_copy(update={"models": models}).must_have_models()

    return read


def _named(model: Path) -> tuple[str, Path]:
    """Return a model's name and folder."""
    name, equals, folder = str(model).partition("=")
    if equals and name and "/" not in name and not model.exists():
        return name, Path(folder)
    return model.resolve().name, model


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
