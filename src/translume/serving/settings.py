"""serve.toml: everything that is settled about a server before it starts, and again when it is told to reload."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator

from translume.config import Settings
from translume.config.base import Names
from translume.config.reading import build, read_text, values_in
from translume.errors import SettingsError
from translume.serving.access.limits import Limits

LOOPBACK = "127.0.0.1"


class KeySettings(Settings):
    """[keys]: who may ask, and how much. A key's own limits, given to `translume keys add`, hold before these."""

    file: str = ""
    """File of keys, made by `translume keys add`; empty: whoever reaches the server may ask."""
    usage: str = ""
    """SQLite database where requests and characters of keys are counted, for all servers that share it.

    Empty: beside `file`, with ".usage" at the end of its name.
    """
    requests_per_minute: float = Field(default=60.0, gt=0.0, le=1e12)
    """Requests of a key per minute in the long run."""
    burst: int = Field(default=20, ge=1, le=10**12)
    """Requests of a key that may come at once; as time goes by, they come back at the rate above."""
    characters_per_day: int = Field(default=1_000_000, ge=0, le=10**12)
    """Characters of a key that may be worked on at once, and come back within a day; 0: without end."""

    @property
    def counted_in(self) -> Path:
        """The database of `usage`."""
        return Path(self.usage or f"{self.file}.usage")


class ServeSettings(Settings):
    """A server: where it listens, what it offers, and to whom."""

    host: str = LOOPBACK
    """Address to listen at; "0.0.0.0" is all of the machine's."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen at; 0 is any free one."""
    public_address: str = ""
    """How clients reach the server, such as "https://translate.example"; empty: as each request says."""
    metrics: str = ""
    """Where counts for Prometheus are offered, a port or ADDRESS:PORT, such as "9100" on loopback; empty: nowhere."""
    cors_origins: Names = ()
    """Origins whose pages may read answers, such as "https://app.example"; "*" is every page there is."""
    log_text: bool = False
    """Whether the log holds what is translated."""
    models: dict[str, str] = Field(default_factory=dict)
    """A model folder for each name, as a table `[models]` of lines such as `en-de = "models/en-de"`."""
    keys: KeySettings = KeySettings()
    limits: Limits = Limits()

    @classmethod
    def read(cls, path: Path | str | None, overrides: Iterable[str] = ()) -> Self:
        """The settings in a TOML file, or without one the defaults, changed by `path=value` overrides.

        Relative paths in the file begin at its folder. Raises SettingsError naming the file and the setting, DataError
        if the file cannot be read.
        """
        if path is None:
            return build(cls, {}, overrides, "serve")
        path = Path(path)
        values = values_in(read_text(path), str(path))
        build(cls, values, (), str(path))
        models, keys = values.get("models", {}), values.get("keys", {})
        moved = {name: str(path.parent / folder) for name, folder in models.items()}
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
        """The settings; SettingsError where they name no model."""
        if not self.models:
            raise SettingsError("serve: found no model, expected MODEL, or a table [models] in --config")
        return self


def place_of(metrics: str) -> tuple[str, int]:
    """Address and port of `metrics`; ValueError where it is neither a port nor ADDRESS:PORT."""
    host, _, port = metrics.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"found {metrics!r}, expected a port or ADDRESS:PORT, such as '127.0.0.1:9100'")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
