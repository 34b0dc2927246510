"""The HTTP API of DeepL, for clients written for it: /v2/translate, /v2/languages and /v2/usage.

Codes of languages are in capitals, as DeepL writes them. Errors have this server's form, and DeepL's `message`.
"""

import csv
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from translume.serving.access.keys import LARGEST
from translume.serving.access.quotas import ACCESS, Access, client_of
from translume.serving.api import responses
from translume.serving.api.body import ApiRequest
from translume.serving.api.errors import RequestError, field_error
from translume.serving.api.language_codes import find_language
from translume.serving.api.languages import between, detect_sources, name_of, sources_into
from translume.serving.api.libretranslate import translate_each
from translume.serving.api.requests import DeepLRequest, GlossaryRequest
from translume.serving.api.routing import ALWAYS, KEYED, READ, Routes
from translume.serving.api.texts import Terms
from translume.serving.files.storage import read_record, write_record
from translume.serving.server import Server
from translume.text.detection import Detector

MAX_GLOSSARIES: Final = 100
"""Maximum number of glossaries of a server; one of at most `limits.body_bytes` each."""
MAX_OF_CLIENT: Final = MAX_GLOSSARIES // 4
"""Maximum number of glossaries of a client."""
TABBED: Final = "text/tab-separated-values"
_ID: Final = re.compile("[A-Za-z0-9_-]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """A glossary.  client: who made it, and alone can use it.  Codes of languages are in lower case."""

    glossary_id: str
    name: str
    client: str
    source_lang: str
    target_lang: str
    creation_time: str
    terms: Terms

    def to_dict(self) -> dict[str, Any]:
        """Return the facts that DeepL's clients read."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("client", "terms")}
        return {**facts, "ready": True, "entry_count": len(self.terms)}


class Glossaries:
    """The glossaries of a server, in its folder. All but `delete` read files: call them in a thread."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def add(self, glossary: Glossary) -> None:
        """Keep a glossary; RequestError (413) if there are too many, of all clients or of this one."""
        owners = [each.client for each in self._all()]
        if len(owners) >= MAX_GLOSSARIES or owners.count(glossary.client) >= MAX_OF_CLIENT:
            reason = f"found {len(owners)} glossaries, {owners.count(glossary.client)} of them yours; delete one"
            raise RequestError(413, reason, code="too_many_glossaries")
        write_record(self._folder / glossary.glossary_id, glossary)

    def owned_by(self, client: str) -> list[Glossary]:
        """Return the glossaries of a client."""
        return [each for each in self._all() if each.client == client]

    def find(self, name: str, client: str) -> Glossary:
        """Return a client's glossary; RequestError (404) if it has no such one."""
        glossary = read_record(self._folder / name, Glossary) if _ID.fullmatch(name) else None
        if glossary is None or glossary.client != client:
            raise RequestError(404, "no such glossary, or it was deleted", code="unknown_glossary", field="glossary_id")
        return glossary

    def delete(self, glossary: Glossary) -> None:
        """Forget a glossary."""
        (self._folder / glossary.glossary_id).unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        folder = self._server.folder / "glossaries"
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _all(self) -> Iterator[Glossary]:
        yield from filter(None, (read_record(path, Glossary) for path in sorted(self._folder.iterdir())))


def _add_glossaries(routes: Routes, server: Server, glossaries: Glossaries) -> None:
    """Add the routes /v2/glossaries and /v2/glossary-language-pairs."""

    @routes.on("POST /v2/glossaries", responses.GlossaryResponse, 422, *READ, status=201)
    async def create(request: Request, call: GlossaryRequest) -> Any:
        """Create a glossary from `entries`, a pair of terms a line."""
        pair = call.source_lang.lower(), call.target_lang.lower()
        between(server, *pair)
        made = Glossary(
            glossary_id=secrets.token_urlsafe(24),
            name=call.name,
            client=client_of(request.scope),
            source_lang=pair[0],
            target_lang=pair[1],
            creation_time=time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
            terms=_read(call.entries, "," if call.entries_format == "csv" else "\t"),
        )
        await run_in_threadpool(glossaries.add, made)
        return made.to_dict()

    @routes.on("GET /v2/glossaries", responses.GlossariesResponse, *KEYED)
    async def listed(request: Request) -> Any:
        """List the client's glossaries."""
        owned = await run_in_threadpool(glossaries.owned_by, client_of(request.scope))
        return {"glossaries": [each.to_dict() for each in owned]}

    @routes.on("GET /v2/glossaries/{name}", responses.GlossaryResponse, 404, 422, *KEYED)
    async def facts(request: Request, name: str) -> Any:
        """Return the facts of a glossary."""
        glossary = await run_in_threadpool(glossaries.find, name, client_of(request.scope))
        return glossary.to_dict()

    @routes.on("GET /v2/glossaries/{name}/entries", None, 404, 422, *KEYED, media={TABBED: None})
    async def entries(request: Request, name: str) -> Response:
        """Return the terms of a glossary, separated by tabs."""
        glossary = await run_in_threadpool(glossaries.find, name, client_of(request.scope))
        text = "".join(f"{source}\t{target}\n" for source, target in glossary.terms)
        return Response(text.encode(), media_type=f"{TABBED}; charset=utf-8")

    @routes.on("DELETE /v2/glossaries/{name}", None, 404, 422, *KEYED, status=204)
    async def delete(request: Request, name: str) -> Response:
        """Delete a glossary."""
        glossaries.delete(await run_in_threadpool(glossaries.find, name, client_of(request.scope)))
        return Response(status_code=204)

    @routes.on("GET /v2/glossary-language-pairs", responses.GlossaryPairs, *KEYED)
    async def pairs() -> Any:
        """List the pairs of languages that glossaries can have."""
        sources = server.models.sources()
        supported = [(source, target) for source, targets in sources.items() for target in targets]
        names = ("source_lang", "target_lang")
        return {"supported_languages": [dict(zip(names, pair, strict=True)) for pair in supported]}


def _read(entries: str, separator: str) -> Terms:
    """Return the terms of a text; RequestError (400) that names the line if one has no pair."""
    terms: list[tuple[str, str]] = []
    lines = entries.splitlines()
    rows = csv.reader(lines) if separator == "," else (line.split(separator) if line else [] for line in lines)
    for number, fields in enumerate(rows, start=1):
        pair = [field.strip() for field in fields[:2]]
        if not fields:
            continue
        if len(pair) < 2 or not all(pair):
            raise field_error("entries", f"line {number} is not a source and a target term", 400, "invalid_glossary")
        terms.append((pair[0], pair[1]))
    if not terms:
        raise field_error("entries", "found no term, expected at least one", 400, "invalid_glossary")
    return terms


VARIANTS: Final = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
"""Codes that DeepL's clients require as target languages, by the code of the language."""


def add_routes(routes: Routes, server: Server, detector: Detector | None) -> None:
    """Add the routes below /v2, except those of documents."""
    glossaries = Glossaries(server)
    _add_glossaries(routes, server, glossaries)

    @routes.on("POST /v2/translate", responses.DeepLResponse, 404, 422, 456, 501, 504, *READ)
    async def translate(request: Request, call: DeepLRequest) -> Any:
        """Translate the texts of `text` to `target_lang`."""
        html, sources = bool(call.tag_handling), [call.source_lang] * len(call.text)
        shown = sources
        if not call.source_lang:
            (source, *others) = sources_into(call.target_lang, server) or [""]
            shown = sources = [source] * len(call.text)
            if others or not source:
                detected = await detect_sources(call.text, call.target_lang, server, detector, html=html)
                sources, shown = [each.code for each in detected], [str(each.detected["language"]) for each in detected]
        client = client_of(request.scope)
        terms = await run_in_threadpool(_terms, glossaries, call, client) if call.glossary_id else ()
        translations = await translate_each(
            request,
            server,
            call.text,
            sources,
            call.target_lang,
            html=html,
            field="text",
            split=call.split_sentences != "0",
            glossary=terms,
        )
        codes = [source.replace("_", "-").partition("-")[0].upper() for source in shown]
        return {
            "translations": [
                {"detected_source_language": code, "text": each.text, "billed_characters": len(text)}
                for code, each, text in zip(codes, translations, call.text, strict=True)
            ]
        }

    @routes.on("GET /v2/languages", list[responses.DeepLLanguage], 400, 408, 413, 415, *ALWAYS)
    @routes.on("POST /v2/languages", None, listed=False)
    async def languages(request: ApiRequest) -> Any:
        """List the source languages, or with `type=target` the target languages."""
        # DeepL's client for Python sends a form, in the body of a GET.
        wanted = (await request.fields()).get("type")
        sources = server.models.sources()
        if wanted != "target":
            return [{"language": code.upper(), "name": name_of(code)} for code, targets in sources.items() if targets]
        targets = dict.fromkeys(code for codes in sources.values() for code in codes)
        variants = [(variant, code) for code in targets for variant in VARIANTS.get(code.upper(), (code.upper(),))]
        return [{"language": variant, "name": name_of(code), "supports_formality": False} for variant, code in variants]

    @routes.on("GET /v2/usage", responses.DeepLUsage, 429, *KEYED)
    async def usage(request: Request) -> Any:
        """Return the characters of the key's daily quota that are used, and the quota."""
        access: Access | None = request.scope[ACCESS]
        key = None if access is None else access.owner(request.scope)
        used, limit = (0, 0) if access is None or key is None else await access.used(key)
        return {"character_count": used, "character_limit": limit or LARGEST}


def _terms(glossaries: Glossaries, call: DeepLRequest, client: str) -> Terms:
    """Return the terms of a request's glossary; RequestError if it is unknown, or for other languages."""
    glossary = glossaries.find(call.glossary_id, client)
    pair = (call.source_lang.lower(), call.target_lang.lower())
    own = (glossary.source_lang, glossary.target_lang)
    if any(find_language(code, [each]) is None for code, each in zip(pair, own, strict=True)):
        reason = f"this glossary is for {'-'.join(own)}"
        raise field_error("glossary_id", reason, 400, "invalid_glossary")
    return glossary.terms
