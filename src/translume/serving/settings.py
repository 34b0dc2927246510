"""Settings of a server: serve.toml, read at startup and at a reload."""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from translume.checkpoint import is_remote
from translume.config import Settings
from translume.config.base import as_tuple
from translume.config.tree import build, parse_toml, read_text
from translume.errors import SettingsError

LOOPBACK = "127.0.0.1"
LOOPBACK_ADDRESSES: Final = ("127.0.0.1", "::1")


def _matching(pattern: str, expected: str) -> AfterValidator:
    """Return a validator of strings.  expected: what a string that matches is, for the error message."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"found {value!r}, expected {expected}")
        return value

    return AfterValidator(check)


def _quoted(value: object) -> object:
    """Return a number so that it is refused as such: 660 and 0o660 would be different permissions."""
    return f"{value}, a number" if isinstance(value, int) else value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise ValueError(f"found {value!r}, expected an address or network such as '10.0.0.0/8'") from None
    return value


Host = Annotated[
    str,
    _matching(r"\*|[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", "a name such as 'translate.example', or '*'"),
]
Origin = Annotated[
    str, _matching(r"\*|file://|[a-z][a-z0-9+.-]*://[^/]+", "an origin such as 'https://app.example', or '*'")
]
URL = Annotated[
    str,
    _matching("|https?://.*", "an address such as 'https://translate.example'"),
    AfterValidator(lambda address: address.rstrip("/")),
]
Place = Annotated[str, AfterValidator(lambda place: place and place_of(place) and place)]
Folder = Annotated[str, _matching("(?s).+", "a folder")]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class KeySettings(Settings):
    """[keys]: API keys and their limits. A key's own limits, set by `translume keys add`, take precedence."""

    file: str = ""
    """File of keys, created by `translume keys add`; empty: no key is required."""
    usage: str = ""
    """Where the requests and characters of keys are counted: a file, which all servers of a machine share;
    "redis://HOST:PORT", which servers of several machines share; or "memory://". Empty: `file` with ".usage" appended.
    """
    requests_per_minute: int = Field(default=60, ge=1, le=10**12)
    """Maximum requests of a key in a minute, from its first request on."""
    characters_per_day: int = Field(default=1_000_000, ge=0, le=10**12)
    """Maximum characters of a key in 24 hours, from its first request on; 0: unlimited."""

    @property
    def counted_in(self) -> str:
        """The file or address of the counts."""
        return self.usage or f"{self.file}.usage"


class Limits(Settings):
    """[limits]: maxima of requests, the queue and files, checked before any work is done. All must be above 0."""

    body_bytes: PositiveInt = 1_000_000
    """Bytes of a request's body."""
    texts: PositiveInt = 256
    """Texts of a request."""
    lines: PositiveInt = 1024
    """Lines or sentences of all texts of a request."""
    characters: PositiveInt = 20_000
    """Characters of a text."""
    width: PositiveInt = 16
    """Hypotheses per sentence: `beam`, `nbest` and `samples`."""
    target_tokens: PositiveInt = 500_000
    """Target tokens that a request may make: hypotheses per sentence times its longest target, summed."""
    requests: PositiveInt = 512
    """Requests in progress."""
    connections: PositiveInt = 1024
    """Open connections; beyond them, idle ones are closed. An address (IPv4) or network (IPv6, /64) that is not in
    `proxies` may have an eighth of them."""
    queue: PositiveInt = 2048
    """Lines in the queue of a process."""
    batch_tokens: PositiveInt = 2048
    """Tokens of a batch, with up to 2 hypotheses per sentence; fewer with more hypotheses."""
    file_bytes: PositiveInt = 5_000_000
    """Bytes of an uploaded file."""
    file_characters: PositiveInt = 1_000_000
    """Characters of an uploaded file's text."""
    seconds: PositiveFloat = 600.0
    """Seconds of an uploaded recording; a model may read less."""
    files: PositiveInt = 8
    """Files that wait or are being translated."""
    file_seconds: PositiveFloat = 3600.0
    """Time limit for translating a file, including its wait."""
    kept_seconds: PositiveFloat = 1800.0
    """How long a translated file is kept."""
    timeout_seconds: PositiveFloat = 30.0
    """Default and largest time limit of a request, from its last byte on."""
    read_seconds: PositiveFloat = 10.0
    """Time limit for receiving the headers of a request, and for receiving its body."""
    drain_seconds: PositiveFloat = 30.0
    """Time limit for finishing requests in progress at shutdown."""
    inspections: ClassVar[int] = 32
    """Inspections that wait or run."""
    inspected_tokens: ClassVar[int] = 30_000
    """Source and target tokens that all passes of an inspection read."""
    inspected_numbers: ClassVar[int] = 1_000_000
    """Attention weights that an inspection returns."""
    listed: ClassVar[int] = 50
    """Candidate tokens that an inspection lists at a step."""
    pixels: ClassVar[int] = 50_000_000
    """Pixels of an uploaded image."""
    unpacked_bytes: ClassVar[int] = 100_000_000
    """Bytes to which an uploaded archive of arrays unpacks."""
    document_seconds: ClassVar[float] = 20.0
    """Time limit for reading or writing an uploaded file."""
    kept_bytes: ClassVar[int] = 200_000_000
    """Bytes of all translated files; the oldest are deleted first."""

    @model_validator(mode="after")
    def _a_request_fits(self) -> Self:
        if not self.texts <= self.lines <= self.queue:
            raise ValueError(
                f"found lines = {self.lines}, expected at least texts, {self.texts}, and at most queue, {self.queue}"
            )
        return self


class ServeSettings(Settings):
    """A server: its address, models, keys and limits."""

    host: str = LOOPBACK
    """Address to listen on; "0.0.0.0" is every address of the machine, "unix:PATH" a Unix socket, for a proxy."""
    socket_mode: Annotated[str, BeforeValidator(_quoted), _matching("[0-7]{3}", "a string such as '660'")] = "660"
    """Permissions of a Unix socket: three octal digits, as a string."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""
    public_address: URL = ""
    """The server's URL for clients, such as "https://translate.example"; empty: from each request."""
    host_names: Annotated[tuple[Host, ...], BeforeValidator(as_tuple)] = ()
    """Names in the Host header that are accepted, such as "translate.example", besides that of `public_address`.

    IP addresses and loopback names are always accepted; "*" accepts all names.
    """
    proxies: Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(as_tuple)] = (
        LOOPBACK_ADDRESSES
    )
    """Addresses or networks of proxies, such as "10.0.0.0/8". Their X-Forwarded-For header names the client.

    They may have any number of `limits.connections`.
    """
    metrics: Place = ""
    """Where to serve Prometheus metrics: a port on localhost, such as "9100", or ADDRESS:PORT; empty: nowhere."""
    cors_origins: Annotated[tuple[Origin, ...], BeforeValidator(as_tuple)] = ()
    """Origins whose pages may read responses (CORS), such as "https://app.example"; "*" allows all.

    Extensions and apps have origins such as "chrome-extension://ID", "moz-extension://ID" and "capacitor://localhost".
    """
    workers: int = Field(default=1, ge=1, le=256)
    """Processes that each hold all models and share the processors. With several, another process distributes the
    requests, and replaces one that ends."""
    log_text: bool = False
    """Whether to log the texts of requests."""
    log_clients: bool = False
    """Whether to log the address of each client and the id of its key."""
    models: dict[str, Folder] = Field(default_factory=dict)
    """Model folders by name, as a table `[models]` with lines such as `en-de = "models/en-de"`; or repositories of the
    Hub, such as `en-fr = "hf://Helsinki-NLP/opus-mt-en-fr"`."""
    on_demand: bool = False
    """Load a translator between two languages when a request first needs it, not at startup. On for packages of Argos
    Translate on the command line."""
    pivot: str = ""
    """Code of a language through which texts are translated, by two models, if no model has a pair; empty: none. "en"
    for packages of Argos Translate on the command line."""
    keys: KeySettings = KeySettings()
    limits: Limits = Limits()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names in Host headers that are accepted, in lower case."""
        names = (*self.host_names, host_name(self.public_address.partition("://")[2]), self.host)
        return tuple(dict.fromkeys(name.lower() for name in names if name))

    @classmethod
    def read(cls, path: Path | str | None, overrides: Iterable[str] = ()) -> Self:
        """Read a TOML file, or the defaults if `path` is None, and apply `path=value` overrides.

        Relative paths in the file are relative to its folder. Raises SettingsError for a wrong setting, and DataError
        if the file cannot be read.
        """
        if path is None:
            return build(cls, {}, overrides, "serve")
        path = Path(path)
        values = parse_toml(read_text(path), str(path))
        build(cls, values, (), str(path))
        models, keys = values.get("models", {}), values.get("keys", {})
        moved = {name: folder if is_remote(folder) else str(path.parent / folder) for name, folder in models.items()}
        files = {name: str(path.parent / keys[name]) for name in ("file", "usage") if keys.get(name)}
        files = {name: keys[name] if "://" in keys[name] else files[name] for name in files}
        return build(cls, {**values, "models": moved, "keys": {**keys, **files}}, overrides, str(path))

    def must_have_models(self) -> Self:
        """Return the settings; SettingsError if they have no model."""
        if not self.models:
            raise SettingsError("serve: found no model, expected MODEL, or a table [models] in --config")
        return self


def host_name(address: str) -> str:
    """Return the host in HOST or HOST:PORT, in lower case; empty if it is malformed."""
    try:
        return (urlsplit(f"//{address.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def place_of(metrics: str) -> tuple[str, int]:
    """Return the address and port of `metrics`; ValueError if it is neither a port nor ADDRESS:PORT."""
    host, _, port = metrics.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"found {metrics!r}, expected a port or ADDRESS:PORT, such as '127.0.0.1:9100'")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
