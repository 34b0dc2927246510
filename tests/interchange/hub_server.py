"""A local HTTP server with the file API of the Hugging Face Hub, for tests."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin")
"""Endings of files that are stored as LFS, with a SHA-256."""


@dataclass
class StoredRepository:
    """Files of one commit.  unlisted: names that are missing when asked for.  wrong: sent with another content."""

    files: dict[str, bytes]
    commit: str = "c0ffee" + "0" * 34
    gated: bool = False
    private: bool = False
    unlisted: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)

    @classmethod
    def from_folder(cls, folder: Path) -> "StoredRepository":
        return cls({path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")})

    def described(self, name: str) -> dict[str, object]:
        """Return the digests of a file under the names of the API."""
        content = self.files[name]
        found: dict[str, object] = {"size": len(content), "oid": git_digest(content)}
        if name.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()  # named "oid" in a tree, "sha256" in a description of a model
            found["lfs"] = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 134}
        return found

    def etag(self, name: str) -> str:
        found = self.described(name)
        return found["lfs"]["sha256"] if "lfs" in found else found["oid"]


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer:
    """The server.

    repositories: by "owner/name".  requests: "METHOD path [Range]" of each request so far.  uploaded: large files by
    digest.  writers: the tokens that may write, with the only owner for whom they may.  broken: the number of coming
    uploads of large files that fail.  always: the status and the body of each answer instead of the usual ones.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, StoredRepository] = {}
        self.requests: list[str] = []
        self.uploaded: dict[str, bytes] = {}
        self.writers: dict[str, str] = {}
        self.broken = 0
        self.always: tuple[int, bytes] | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815 (the names of the base class)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def transferred(self) -> list[str]:
        """Return the names of the files that were downloaded, in order."""
        return [
            each.split("/")[-1].split()[0] for each in self.requests if each.startswith("GET") and "resolve" in each
        ]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        ranged = handler.headers.get("Range")
        self.requests.append(" ".join(filter(None, (handler.command, path, ranged))))
        if self.always is not None:
            return self.send(handler, *self.always, {"Content-Type": "text/html"})
        if handler.command in ("POST", "PUT"):
            return self.receive(handler, path, handler.rfile.read(int(handler.headers["Content-Length"])))
        if path == "/api/models":  # a search
            wanted = parse_qs(urlsplit(handler.path).query)
            start = f"{wanted['author'][0]}/{wanted['search'][0]}"
            found = [{"id": name} for name in self.repositories if name.startswith(start)]
            return self.send(handler, 200, json.dumps(found).encode(), {"Content-Type": "application/json"})
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        repository = self.repositories.get(found[1]) if found else None
        if repository is None:
            return self.refuse(handler, 401, "RepoNotFound")
        if repository.gated and "authorization" not in handler.headers:
            return self.refuse(handler, 401, "GatedRepo")
        revision = api[3] if api else file[2]
        if revision not in (None, "main", repository.commit):
            return self.refuse(handler, 404, "RevisionNotFound")
        if api:
            listed = {name: repository.described(name) for name in repository.files}
            if api[2] == "tree":
                values = [{"type": "file", "path": name, **each} for name, each in listed.items()]
            else:
                siblings = [{"rfilename": name, "blobId": each["oid"], **each} for name, each in listed.items()]
                values = {"id": found[1], "sha": repository.commit, "siblings": siblings, "private": False}
            return self.send(handler, 200, json.dumps(values).encode(), {"Content-Type": "application/json"})
        name = file[3]
        if name not in repository.files or name in repository.unlisted:
            return self.refuse(handler, 404, "EntryNotFound")
        return self.send_file(handler, repository, name, ranged)

    def receive(self, handler, path: str, body: bytes) -> None:
        """Answer the requests of an upload: create, validate, ask how, send large files, commit."""
        if path.startswith("/large/"):
            self.broken -= 1
            if self.broken >= 0:
                return self.refuse(handler, 507, "Insufficient Storage")
            self.uploaded[path.rpartition("/")[2]] = body
            return self.send(handler, 200, b"", {})
        values = [json.loads(line) for line in body.splitlines()]
        found = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/.]+)(?:\.git)?/(preupload|info|commit)/.+", path)
        name = found[1] if found else f"{values[0].get('organization')}/{values[0].get('name')}"
        token = handler.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.writers:
            return self.refuse(handler, 401, "")
        if name.split("/")[0] != self.writers[token] and path != "/api/validate-yaml":
            return self.refuse(handler, 403, "")
        answers = {"url": f"{self.address}/{name}"}
        if path == "/api/repos/create":
            if name in self.repositories:
                return self.send(handler, 409, json.dumps(answers).encode(), {})
            self.repositories[name] = StoredRepository(files={".gitattributes": b"lfs"})
            self.repositories[name].private = values[0].get("visibility") == "private"
        elif found and found[2] == "preupload":
            sent = [each["path"] for each in values[0]["files"]]
            modes = ["lfs" if each.endswith(LARGE) else "regular" for each in sent]
            answers["files"] = [
                {"path": each, "uploadMode": mode, "shouldIgnore": False}
                for each, mode in zip(sent, modes, strict=True)
            ]
        elif found and found[2] == "info":
            answers["objects"] = [
                {**each, "actions": {"upload": {"href": f"{self.address}/large/{each['oid']}"}}}
                for each in values[0]["objects"]
            ]
        elif found:
            made = self.commit(self.repositories[name], values[1:])
            answers |= {"commitUrl": f"{answers['url']}/commit/{made}", "commitOid": made}
        self.send(handler, 200, json.dumps(answers).encode(), {"Content-Type": "application/json"})

    def commit(self, repository: StoredRepository, changes: list[dict]) -> str:
        for change in changes:
            value, kind = change["value"], change["key"]
            if kind == "deletedFile":
                del repository.files[value["path"]]
            else:
                content = base64.b64decode(value["content"]) if kind == "file" else self.uploaded[value["oid"]]
                repository.files[value["path"]] = content
        repository.commit = hashlib.sha1(repr(sorted(repository.files.items())).encode()).hexdigest()
        return repository.commit

    def send_file(self, handler, repository: StoredRepository, name: str, ranged: str | None) -> None:
        content, size = repository.files[name], len(repository.files[name])
        headers = {"ETag": f'"{repository.etag(name)}"', "X-Repo-Commit": repository.commit}
        if name.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{repository.etag(name)}"', "X-Linked-Size": str(size)}
        if name in repository.wrong:
            content = content[::-1]
        status, start = 200, 0
        if ranged:
            status, start = 206, int(ranged.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        self.send(handler, status, content[start:], headers)

    def refuse(self, handler, status: int, code: str) -> None:
        self.send(handler, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, handler, status: int, content: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content)


def start_hub(monkeypatch, folder: Path) -> HubServer:
    """Start a server, and let huggingface_hub and the cache of imports use it and folders inside `folder`."""
    from huggingface_hub import constants

    server = HubServer()
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": server.address, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_DISABLE_XET": True,
        "HF_HUB_CACHE": str(folder / "downloads"), "HF_TOKEN_PATH": str(folder / "token"),
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("TRANSLUME_CACHE", str(folder / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return server
