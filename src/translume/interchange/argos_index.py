"""Packages of Argos Translate by their languages: argos:en-de is looked up in an index and downloaded once."""

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import wrap_file

from translume import atomic
from translume.atomic import make_folder
from translume.checkpoint.folder import ARGOS
from translume.errors import DataError, ModelFolderError, refused, similar
from translume.kernels.cpu import cache_folder
from translume.version import __version__

INDEX = "https://raw.githubusercontent.com/argosopentech/argospm-index/main/index.json"
"""The index of Argos Translate."""
VARIABLE = "TRANSLUME_ARGOS_INDEX"
"""The environment variable with the file or address of another one."""
MAX_INDEX, MAX_PACKAGE = 1 << 24, 1 << 31
"""Largest sizes of an index and of a package in bytes."""
TIMEOUT_SECONDS = 30
_WEB = ("http://", "https://")
_NAME = re.compile(r"\w[\w.-]*")


def downloaded(source: str, *, progress: bool = True) -> Path:
    """Return the file of argos:FROM-TO in the user's cache, after downloading it if it is not there.

    Without a connection, the last index that was read is used. progress: whether a terminal shows a bar.
    Raises ModelFolderError for a pair that the index does not have or a failed download, DataError for a damaged index.
    """
    index, pair = os.environ.get(VARIABLE) or INDEX, source.removeprefix(ARGOS)
    links = _links(_index_file(index), index)
    if pair not in links:
        raise ModelFolderError(f"{source}: not in {index}{similar(pair, links)}")
    name = PurePosixPath(urlsplit(links[pair]).path).name
    file = _place(links[pair]) / (name if _NAME.fullmatch(name) else "package.argosmodel")
    if not file.exists():
        _download(links[pair], file, MAX_PACKAGE, progress=progress)
    return file


def _place(address: str) -> Path:
    """Return the folder in the cache for what is at an address."""
    return cache_folder() / "argos" / hashlib.sha256(address.encode()).hexdigest()[:32]


def _index_file(index: str) -> Path:
    if not index.startswith(_WEB):
        return Path(index)
    file = _place(index) / "index.json"
    try:
        _download(index, file, MAX_INDEX, progress=False)
    except ModelFolderError as error:
        if not file.exists():
            raise
        logging.getLogger(__name__).warning("%s: using the copy in the cache", error)
    return file


def _links(file: Path, index: str) -> Mapping[str, str]:
    """Return the address of the newest package of each pair, "en-de"."""
    try:
        with refused(index, "cannot be read"), file.open("rb") as opened:
            content = opened.read(MAX_INDEX + 1)
        if len(content) > MAX_INDEX:
            raise DataError(f"{index}: found more than {MAX_INDEX:,} bytes, expected an index")
        links: dict[str, tuple[list[int], str]] = {}
        packages = json.loads(content)
        for package in packages if isinstance(packages, list) else [packages]:
            version = [int(number) for number in re.findall(r"\d+", package["package_version"])]
            link = next((link for link in package.get("links", ()) if link.startswith(_WEB)), "")
            pair = f"{package['from_code']}-{package['to_code']}"
            if link and package.get("type", "translate") == "translate":
                links[pair] = max(links.get(pair, ([], "")), (version, link))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{index}: expected a JSON list of packages with package_version, from_code, to_code and links"
        ) from None
    return {pair: link for pair, (_, link) in links.items()}


def _download(address: str, file: Path, limit: int, *, progress: bool) -> None:
    """Write what is at an address to a file that appears when it is complete."""
    part = atomic.beside(file)
    try:
        make_folder(file.parent)
        atomic.write(part, _chunks(address, limit, progress=progress))
        os.replace(part, file)
    except HTTPError as error:
        error.close()
        raise ModelFolderError(f"{address}: the server answers {error.code}") from None
    except (OSError, ValueError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        raise ModelFolderError(
            f"{address}: cannot be downloaded: {getattr(cause, 'strerror', None) or cause}"
        ) from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _chunks(address: str, limit: int, *, progress: bool) -> Iterator[bytes]:
    request = Request(address, headers={"User-Agent": f"translume/{__version__}"})
    with urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # http or https, also after redirections
        size, read = int(response.headers.get("Content-Length") or 0), 0
        shown = wrap_file(
            response, size, description=address, console=Console(stderr=True), transient=True,
            disable=not (progress and sys.stderr.isatty()),
        )  # fmt: skip
        with shown as content:
            while size <= limit >= read and (chunk := content.read(1 << 20)):
                read += len(chunk)
                yield chunk
    if max(size, read) > limit:
        raise ModelFolderError(f"{address}: found {max(size, read):,} bytes, expected at most {limit:,}")
    if size and read != size:
        raise ModelFolderError(f"{address}: found {read:,} bytes, expected {size:,}: the transfer was cut")
