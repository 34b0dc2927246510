"""Responses of the HTTP API: models that describe in /openapi.json what routes return."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from translume.inspection.values import BeamRecord, Trace
from translume.serving.settings import Limits

Count = Annotated[int, Field(ge=0)]
Nats = Annotated[float | None, Field(description="Nats; null is −∞.")]
Offers = list[Literal["translate", "score", "inspect", "classify", "generate", "transcribe"]]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ResponseBody(BaseModel):
    """An object with exactly these fields; fields with a default may be absent."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, defer_build=True)


class Error(ResponseBody):
    """Why a request was refused or failed."""

    error: str
    """One line: what was found, and what was expected."""
    code: str
    """A stable word for the kind of error."""
    field: str = ""
    """The field of the request that is wrong, if the error is about a field."""
    message: str = ""
    """At the paths of DeepL the same as `error`: its clients show it."""


class Alignment(ResponseBody):
    """How the target's tokens align with the source's."""

    source_tokens: list[str]
    weights: list[list[float]]
    """Attention of each target token to each source token; rows sum to 1."""
    links: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
    """Pairs of word indices: (source, target)."""


class ScoreTerms(ResponseBody):
    """The terms of a score: total / divisor + coverage."""

    total: Nats
    divisor: float
    coverage: Nats


class ScoredText(ResponseBody):
    """A text that a search found. `tokens` and their log-probabilities are only in detailed responses."""

    text: str
    log_prob: Nats
    score: Nats
    """The value hypotheses are ranked by."""
    tokens: list[str] = []
    token_log_probs: list[Nats] = []
    """The model's log-probability of each token."""


class Hypothesis(ScoredText):
    """A hypothesis of the search. Without `detail` it has only `text`, `log_prob`, `score` and `alignment`."""

    finished_by: Literal["eos", "length"] = "eos"
    terms: ScoreTerms | None = None
    alignment: Alignment | None = None


class TranslationWarning(ResponseBody):
    """A problem that did not prevent the translation."""

    kind: str
    detail: str


class Translation(ResponseBody):
    """The translation of a text."""

    text: str
    warnings: list[TranslationWarning]
    hypotheses: list[Hypothesis] = []
    """Best first; present with `detail`, `nbest` or `alignment`."""


class TranslateResponse(ResponseBody):
    """The response of /v1/translate."""

    model: str
    translations: list[Translation]
    """One translation per text, in order."""


class Event(ResponseBody):
    """A server-sent event; the last one is `done` or `error`."""

    event: Literal["prefix", "text", "done", "error"]
    """`prefix` of a translation, or the next `text` after a prompt, until the end."""
    data: str
    """JSON: {place, text} of a prefix or of the next text; the full response of the route; an `Error`."""


class Score(ResponseBody):
    """The log-probability of a target given its source."""

    log_prob: Nats
    tokens: list[str]
    token_log_probs: list[Nats]
    warnings: list[str]


class ScoreResponse(ResponseBody):
    """The response of /v1/score."""

    model: str
    scores: list[Score]
    """One score per pair, in order."""


class Classification(ResponseBody):
    """The labels of a text."""

    label: str
    labels: list[str]
    probabilities: dict[str, float]
    """By label, the most probable first."""
    warnings: list[str]
    margin: float
    """Difference between the two most probable labels; with several labels, the smallest distance from 0.5."""


class SpokenSegment(ResponseBody):
    """What is said in a part of a recording.  start, end: in seconds."""

    start: Annotated[float, Field(ge=0)]
    end: Annotated[float, Field(ge=0)]
    text: str


class TranscribeResponse(ResponseBody):
    """The response of /v1/transcribe as JSON."""

    model: str
    text: str
    warnings: list[TranslationWarning]
    language: str = ""
    """Code of the language of a recording, given or detected, for Whisper."""
    segments: list[SpokenSegment] = []
    """With `timestamps`, and for recordings longer than a window of Whisper."""
    hypotheses: list[Hypothesis] = []
    """Best first; present with `detail` or `nbest`."""


class SpeechSegment(SpokenSegment):
    """A segment in OpenAI's format."""

    id: Count


class SpeechResponse(ResponseBody):
    """The response of /v1/audio/transcriptions as JSON. All fields but the text are those of `verbose_json`."""

    text: str
    task: Literal["transcribe", "translate"] = "transcribe"
    language: str = ""
    duration: float = 0.0
    """Seconds."""
    segments: list[SpeechSegment] = []


class ClassifyResponse(ResponseBody):
    """The response of /v1/classify."""

    model: str
    classifications: list[Classification]
    """One classification per text, in order."""


class GeneratedText(ScoredText):
    """A text that continues a prompt."""

    finished_by: Literal["eos", "length", "stop"]
    """EOS, the limit of tokens, or one of `stop_strings`."""


class GenerationBody(ResponseBody):
    """The texts that continue a prompt."""

    text: str
    """The best of them, without the prompt."""
    prompt_tokens: Count
    generated_tokens: Count
    """Of the best text, EOS included."""
    warnings: list[TranslationWarning]
    texts: list[GeneratedText]


class GenerateResponse(ResponseBody):
    """The response of /v1/generate."""

    model: str
    generations: list[GenerationBody]
    """One generation per prompt, in order."""


class InspectResponse(ResponseBody):
    """The response of /v1/inspect."""

    model: str
    part: Count
    parts: Count
    trace: Trace
    search: BeamRecord | None = None


class Engine(ResponseBody):
    """What computes."""

    kind: Literal["fast", "plain", "unloaded"]
    """"unloaded" for a model that no request has needed yet."""
    dtype: str
    own_kernels: bool
    """Whether the compiled kernels are in use."""
    kernels: str = ""
    """Instruction set and origin of the kernels, or why there are none. Empty for a plain model."""
    alone_equals_batched: bool | None = None
    """Whether the results of a sentence alone and in a batch are equal, bit for bit."""


class Reads(ResponseBody):
    """The files that a model reads."""

    kind: str
    """`data.source.kind` of the model: audio, whisper, image or features."""
    files: list[str]
    """Ends of their names. The kind of a file is recognised by its content."""
    seconds: float = 0.0
    """The most seconds of a recording; `limits.seconds` may allow less."""
    times: bool
    """Whether the model writes times, for subtitles."""


class Model(ResponseBody):
    """A model of the server."""

    name: str
    parameters: Count
    source_vocabulary: Count
    max_positions: Count
    engine: Engine
    offers: Offers
    """Endpoints that the model serves."""
    manifest_sha256: Digest = ""
    """SHA-256 of manifest.json in the model folder."""
    licence: str = ""
    """As the model card states it, or "unknown"."""
    source: str = ""
    target: str = ""
    directions: list[list[str]] = []
    """Pairs of a source and a target language, of a model with several."""
    target_vocabulary: Count = 0
    decoding: dict[str, Any] = {}
    """The model's [decoding]: the defaults of requests."""
    labels: list[str] = []
    several_labels: bool = False
    reads: Reads | None = None
    """Of a model of recordings, images or arrays."""
    languages: list[str] = []
    """Codes of the languages of recordings that a model can tell apart."""


class ModelsResponse(ResponseBody):
    """The response of /v1/models."""

    models: list[Model]


class Versions(ResponseBody):
    """Versions of the software that results depend on."""

    translume: str
    torch: str | None
    """None if it is not installed."""
    python: str


class Info(ResponseBody):
    """What the server is, and what it allows."""

    version: str
    versions: Versions
    limits: Limits
    waiting: Count
    """Number of lines in the queue."""
    engines: dict[str, Engine]
    """By model."""
    manifests: dict[str, Digest]
    """By model: SHA-256 of manifest.json in its folder."""
    licences: dict[str, str]
    """By model: the licence that its card states, or "unknown"."""
    offers: dict[str, Offers]
    """By model: the endpoints that it serves."""
    detects: bool
    """Whether the server detects languages."""
    batches: str
    """What results share when a text is translated alone and in a batch."""


class File(ResponseBody):
    """A file that is being translated."""

    id: str
    name: str
    status: Literal["waiting", "working", "done", "failed"]
    sentences: int | None
    """Null until the file has been read."""
    done: Count
    """Number of translated sentences."""
    warnings: list[str] = []
    """What a user should know about the file, such as the encoding it was read in."""
    result: str = ""
    """Path of the translated file."""
    kept_seconds: Count = 0
    error: Error | None = None


class FileDeleted(ResponseBody):
    """The response to the deletion of a file."""

    id: str
    status: Literal["deleted"]


class Live(ResponseBody):
    """The response of /health/live, and of LibreTranslate's /health."""

    status: Literal["live", "ok"]


class Reload(ResponseBody):
    """The outcome of the last reload."""

    at: str
    done: bool
    kept_as_before: list[str]
    """What could not be reloaded and is served as before."""


class Ready(ResponseBody):
    """The response of /health/ready."""

    status: Literal["ready"]
    last_reload: Reload | None = None


class Detected(ResponseBody):
    """A detected language."""

    confidence: Annotated[float, Field(ge=0, le=100)]
    language: str


class LibreTranslateResponse(ResponseBody):
    """The response of LibreTranslate's /translate: for a list of texts, every field is a list."""

    model_config = ConfigDict(alias_generator=to_camel)

    translated_text: str | list[str]
    detected_language: Detected | list[Detected] | None = None
    """With `source` = `auto`."""
    alternatives: list[str] | list[list[str]] = []
    """If the request asks for alternatives."""
    warnings: list[str] | list[list[str]] = []
    """With `source` = `auto`, if the server does not have the language that a text is in."""
    models: list[str] | list[list[str]] = []
    """The names of the models, if two translate a text one after the other."""


class DeepLTranslation(ResponseBody):
    """The translation of a text by /v2/translate."""

    detected_source_language: str
    """In capitals, as DeepL writes it."""
    text: str
    billed_characters: Count
    """Characters of the text that was sent. DeepL's client requires the field."""


class DeepLResponse(ResponseBody):
    """The response of /v2/translate."""

    translations: list[DeepLTranslation]


class DeepLLanguage(ResponseBody):
    """A language of /v2/languages."""

    language: str
    """Its code in capitals."""
    name: str
    supports_formality: bool = False


class DeepLDocument(ResponseBody):
    """A document that /v2/document has accepted. Requests about it send the key back."""

    document_id: str
    document_key: str


class DeepLDocumentStatus(ResponseBody):
    """The status of a document."""

    document_id: str
    status: Literal["queued", "translating", "done", "error"]
    billed_characters: Count
    error_message: str = ""


class GlossaryPair(ResponseBody):
    """Languages that a glossary can have."""

    source_lang: str
    target_lang: str


class GlossaryResponse(GlossaryPair):
    """A glossary."""

    glossary_id: str
    name: str
    ready: bool
    creation_time: str
    entry_count: Count


class GlossariesResponse(ResponseBody):
    """The glossaries of a client."""

    glossaries: list[GlossaryResponse]


class GlossaryPairs(ResponseBody):
    """The response of /v2/glossary-language-pairs."""

    supported_languages: list[GlossaryPair]


class DeepLUsage(ResponseBody):
    """The usage of a key."""

    character_count: Count
    """Characters of the daily quota that are used."""
    character_limit: Count
    """The daily quota; 1,000,000,000,000 if there is none."""


class Language(ResponseBody):
    """A language."""

    code: str
    name: str


class LanguageTargets(Language):
    """A language, and those it can be translated into."""

    targets: list[str]


class LanguagePair(ResponseBody):
    """A source and a target language."""

    source: Language
    target: Language


class FrontendSettings(ResponseBody):
    """The response of LibreTranslate's /frontend/settings."""

    model_config = ConfigDict(alias_generator=to_camel)

    api_keys: bool
    char_limit: Count
    files_translation: bool
    frontend_timeout: Count
    key_required: bool
    language: LanguagePair
    suggestions: bool
    supported_files_format: list[str]


class TranslatedFile(ResponseBody):
    """The response of LibreTranslate's /translate_file."""

    model_config = ConfigDict(alias_generator=to_camel)

    translated_file_url: str
