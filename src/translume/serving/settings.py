"""Settings of a server: serve.toml, read at startup and at a reload."""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from pydantic import Field, field_validator

from translume.checkpoint import is_hub
from translume.config import Settings
from translume.config.base import Names
from translume.config.tree import build, parse_toml, read_text
from translume.errors import SettingsError
from translume.serving.access.limits import Limits
from translume.serving.access.origins import host_name

LOOPBACK = "127.0.0.1"
LOOPBACK_ADDRESSES: Final = ("127.0.0.1", "::1")

HOST_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


class KeySettings(Settings):
    """[keys]: API keys and their limits. A key's own limits, set by `translume keys add`, take precedence."""

    file: str = ""
    """File of keys, created by `translume keys add`; empty: no key is required."""
    usage: str = ""
    """SQLite database that counts requests and characters of keys, for all servers that share it.

    Empty: `file` with ".usage" appended.
    """
    requests_per_minute: float = Field(default=60.0, gt=0.0, le=1e12)
    """Requests of a key per minute, on average."""
    burst: int = Field(default=20, ge=1, le=10**12)
    """Requests of a key that may come at once; they are restored at the rate above."""
    characters_per_day: int = Field(default=1_000_000, ge=0, le=10**12)
    """Characters of a key, restored within a day; 0: unlimited."""

    @property
    def counted_in(self) -> Path:
        """The path of the usage database."""
        return Path(self.usage or f"{self.file}.usage")


class ServeSettings(Settings):
    """A server: its address, models, keys and limits."""

    host: str = LOOPBACK
    """Address to listen on; "0.0.0.0" is every address of the machine."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""
    public_address: str = ""
    """The server's URL for clients, such as "https://translate.example"; empty: from each request."""
    host_names: Names = ()
    """Names in the Host header that are accepted, such as "translate.example", besides that of `public_address`.

    IP addresses and loopback names are always accepted; "*" accepts all names.
    """
    proxies: Names = LOOPBACK_ADDRESSES
    """Addresses or networks of proxies, such as "10.0.0.0/8". Their X-Forwarded-For header names the client.

    `limits.connections_per_address` does not apply to them.
    """
    metrics: str = ""
    """Where to serve Prometheus metrics: a port on localhost, such as "9100", or ADDRESS:PORT; empty: nowhere."""
    cors_origins: Names = ()
    """Origins whose pages may read responses (CORS), such as "https://app.example"; "*" allows all."""
    lanes: int = Field(default=0, ge=0, le=256)
    """Searches that a worker runs at a time, each on one processor; they share one copy of the weights. 0: one for each
    processor that a worker has, or one on a GPU and with `--threads`."""
    standby: bool = True
    """Whether one more process waits, without models, to replace a worker that ends. It takes 170 MB."""
    log_text: bool = False
    """Whether to log the texts of requests."""
    log_clients: bool = False
    """Whether to log the address of each client and the id of its key."""
    models: dict[str, str] = Field(default_factory=dict)
    """Model folders by name, as a table `[models]` with lines such as `en-de = "models/en-de"`; or repositories of the
    Hub, such as `en-fr = "hf://Helsinki-NLP/opus-mt-en-fr"`."""
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
        moved = {name: folder if is_hub(folder) else str(path.parent / folder) for name, folder in models.items()}
        files = {name: str(path.parent / keys[name]) for name in ("file", "usage") if keys.get(name)}
        return build(cls, {**values, "models": moved, "keys": {**keys, **files}}, overrides, str(path))

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            scheme, colon, rest = origin.partition("://")
            if origin != "*" and (scheme not in ("http", "https") or not colon or not rest or "/" in rest):
                raise ValueError(f"found {origin!r}, expected an origin such as 'https://app.example', or '*'")
        return origins

    @field_validator("host_names")
    @classmethod
    def _names_are_hosts(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not HOST_NAME.fullmatch(name):
                raise ValueError(f"found {name!r}, expected a name such as 'translate.example', or '*'")
        return names

    @field_validator("proxies")
    @classmethod
    def _proxies_are_networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError(f"found {proxy!r}, expected an address or network such as '10.0.0.0/8'") from None
        return proxies

    @field_validator("public_address")
    @classmethod
    def _address_is_one(cls, address: str) -> str:
        if address and not address.startswith(("http://", "https://")):
            raise ValueError(f"found {address!r}, expected an address such as 'https://translate.example'")
        return address.rstrip("/")

    @field_validator("metrics")
    @classmethod
    def _metrics_is_a_place(cls, place: str) -> str:
        if place:
            place_of(place)
        return place

    @field_validator("models")
    @classmethod
    def _models_have_names(cls, models: dict[str, str]) -> dict[str, str]:
        for name, folder in models.items():
            if not name or not folder:
                raise ValueError(f"found {name!r} = {folder!r}, expected a name and a folder")
        return models

    def must_have_models(self) -> Self:
        """Return the settings; SettingsError if they have no model."""
        if not self.models:
            raise SettingsError("serve: found no model, expected MODEL, or a table [models] in --config")
        return self


def place_of(metrics: str) -> tuple[str, int]:
    """Return the address and port of `metrics`; ValueError if it is neither a port nor ADDRESS:PORT."""
    host, _, port = metrics.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"found {metrics!r}, expected a port or ADDRESS:PORT, such as '127.0.0.1:9100'")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
