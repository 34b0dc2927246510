"""Tokenizers of transformers: MarianTokenizer's files, and tokenizer.json in both directions."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import ValidationError
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from translume.checkpoint import Checkpoint
from translume.config import TokenizerSettings
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.interchange.huggingface.config import CONFIG, ForeignConfig, read_json
from translume.interchange.sentencepiece import SPACE, read_sentencepiece, write_sentencepiece
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.segmentation import UNSPACED, segment_pattern
from translume.text.vocabulary import BOS, language_tag

TEXTS, LONGEST = 200, 23
"""Number of random texts on which both tokenizers must agree, and their maximum length in tokens."""

_SPACES = "".join(f"\\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace())
"""White space as defined by Python's `str.split`, which is more than `\\s` of other regular expressions."""
NAME, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
"""The class that `translume export` writes, by its names in releases of transformers, without "Fast"."""
_COMPARED = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_FORMS: dict[str, Literal["nfc", "nfd", "nfkc"]] = {"NFC": "nfc", "NFD": "nfd", "NFKC": "nfkc"}
_KINDS: dict[str, Literal["bpe", "unigram"]] = {"BPE": "bpe", "Unigram": "unigram"}
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SOURCE, TARGET, BPE = "source.spm", "target.spm", "sentencepiece.bpe.model"
UNKNOWN = "<unk>"
M2M100_LANGUAGES = "transformers.models.m2m_100.tokenization_m2m_100:FAIRSEQ_LANGUAGE_CODES"
"""Where transformers keeps the lists of languages of M2M-100's tokenizers, by name."""


def library_tokenizer(tokenizer: Tokenizer) -> LibraryTokenizer:
    """Return a tokenizer of the `tokenizers` library with the same ids, which adds EOS and skips special tokens.

    Raises SettingsError for a kind that the library cannot express, TranslumeError if the two disagree on a text.
    """
    settings, pieces, specials = tokenizer.settings, tokenizer.pieces(), tokenizer.specials
    if settings.kind != "bpe" and (settings.kind, settings.unknown) != ("unigram", "token"):
        raise SettingsError(
            f"tokenizer.kind: found '{settings.kind}' with unknown = '{settings.unknown}', "
            "expected 'bpe', or 'unigram' with unknown = 'token', for huggingface"
        )
    model = tokenizer.library_model()
    library = LibraryTokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if settings.normalization != "none":
        forms = {"nfc": normalizers.NFC, "nfd": normalizers.NFD, "nfkc": normalizers.NFKC}
        steps.append(forms[settings.normalization]())
    if settings.lowercase:
        steps.append(normalizers.Lowercase())
    if settings.whitespace == "collapse":
        steps += [normalizers.Replace(Regex(f"[{_SPACES}]+"), " "), normalizers.Strip()]
    unspaced = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in UNSPACED)
    steps.append(normalizers.Replace(Regex(rf"\A(?=[^{unspaced}])"), " "))  # the space before the first word
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(_oniguruma(segment_pattern(settings.kind))), "isolated")
    end = pieces[specials.eos]
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, specials.eos)]
    )
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    marks = (specials.pad, specials.bos, specials.eos, specials.unk)
    library.add_special_tokens([AddedToken(pieces[each], special=True) for each in marks if each is not None])
    library.encode_special_tokens = True  # `</s>` in a user's text is text
    _compare_tokenizers(tokenizer, library)
    return library


def _oniguruma(pattern: str) -> str:
    """Translate a regular expression of Python for the library's engine."""
    return re.sub(r"\\U([0-9a-f]{8})", lambda found: f"\\x{{{int(found.group(1), 16):x}}}", pattern)


def _compare_tokenizers(tokenizer: Tokenizer, library: LibraryTokenizer) -> None:
    specials = tokenizer.specials
    generator = torch.Generator().manual_seed(1)
    for _ in range(TEXTS):
        length = int(torch.randint(LONGEST, (), generator=generator))
        ids = torch.randint(specials.eos + 1, len(tokenizer), (length,), generator=generator).tolist()
        text = tokenizer.decode([each for each in ids if each != specials.unk])
        ours, theirs = [*tokenizer.encode(text), specials.eos], library.encode(text).ids
        if ours != theirs:
            raise TranslumeError(f"tokenizer: {text!r} has ids {theirs} in the export, expected {ours}")
        if "\ufffd" not in text and library.decode(theirs) != tokenizer.decode(ours):
            raise TranslumeError(
                f"tokenizer: {library.decode(theirs)!r} in the export, expected {tokenizer.decode(ours)!r}"
            )


def tokenizer_class(folder: Path) -> str:
    """Return `tokenizer_class` of tokenizer_config.json, or of config.json; empty if there is none."""
    for name in (TOKENIZER_CONFIG, CONFIG):
        path = folder / name
        found = read_json(path).get("tokenizer_class") if path.exists() else None
        if isinstance(found, str):
            return found
    return ""


def refuse_tokenizers(folder: Path, known: Sequence[str]) -> None:
    """Raise SettingsError if the tokenizer of a folder is neither one of these classes nor that of an export."""
    found = tokenizer_class(folder).removesuffix("Fast")
    if found not in (*known, *_GENERIC):
        raise SettingsError(f"{folder}: tokenizer_class: found {found!r}, expected {' or '.join(map(repr, known))}")


def read_tokenizer(folder: Path, config: ForeignConfig, codes: str) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizer of both sides: that of an export, or as `read_wrapped_tokenizer`."""
    if tokenizer_class(folder).removesuffix("Fast") in _GENERIC:
        return read_exported_tokenizer(folder, config)
    wrapped = "translume.interchange.huggingface.library_tokenizer:read_wrapped_tokenizer"
    tokenizer: Tokenizer = resolve_name(wrapped)(folder, config, codes)  # the module imports transformers
    return tokenizer, tokenizer


def read_exported_tokenizer(folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizer of both sides, if `translume export` wrote it.

    Raises ModelFolderError if there is none, SettingsError for one that does not fit config.json, and as
    `read_library_tokenizer`.
    """
    if not (folder / NAME).exists():
        raise ModelFolderError(f"{folder}: no tokenizer, expected the {NAME} of `translume export`")
    tokenizer = read_library_tokenizer(folder)
    specials = tokenizer.specials
    for name, found, wanted in (
        ("pad_token_id", config.pad, specials.pad),
        ("decoder_start_token_id", config.bos, specials.bos),
        ("eos_token_id", config.eos, specials.eos),
        ("vocab_size", config.vocabulary, len(tokenizer)),
        ("decoder_vocab_size", config.target_vocabulary, len(tokenizer)),
    ):
        if found != wanted:
            raise SettingsError(f"{config.place}: {name}: found {found}, expected {wanted} by {NAME}")
    return tokenizer, tokenizer


def read_library_tokenizer(folder: Path) -> Tokenizer:
    """Read a folder's tokenizer.json, if `translume export` wrote it.

    Raises DataError for a damaged file, SettingsError for one that differs from what `translume export` writes, since
    it would give other ids for some texts.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    try:
        tokenizer = Tokenizer.from_json(_settings_text(document), str(path))
    except (KeyError, TypeError, AttributeError, ValidationError):
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote") from None
    try:
        written = json.loads(library_tokenizer(tokenizer).to_str())
    except TranslumeError as error:
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote: {error}") from None
    for part in _COMPARED:
        if written[part] != document.get(part):
            raise SettingsError(f"{path}: {part}: not as `translume export` writes it, so that texts get other ids")
    return tokenizer


def _settings_text(document: dict[str, Any]) -> str:
    """Return the text of our own tokenizer.json with the same settings."""
    model = document["model"]
    steps = [step["type"] for step in document["normalizer"]["normalizers"]]
    form = next((_FORMS[step] for step in steps if step in _FORMS), None)
    settings = TokenizerSettings(
        kind=_KINDS[model["type"]],
        size=max(len(model["vocab"]), 8),
        normalization=form or "none",
        lowercase="Lowercase" in steps,
        whitespace="collapse" if "Strip" in steps else "keep",
        unknown="bytes" if model["byte_fallback"] else "token",
    )
    names = ("kind", "size", "normalization", "lowercase", "whitespace", "unknown")
    return json.dumps(
        {
            "format": 1,
            "kind": "translume tokenizer",
            "settings": {name: getattr(settings, name) for name in names},
            "specials": {"pad": 0, "bos": 1, "eos": 2, "unk": None if settings.unknown == "bytes" else 3},
            "tokenizer": {"model": model},
        }
    )


def read_marian_tokenizers(folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizers of source and target; one object if both files and both vocabularies are the same.

    A target_vocab.json is the target's own vocabulary.
    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for unsupported options.
    """
    source_path, target_path = folder / SOURCE, folder / TARGET
    separate = (folder / TARGET_VOCABULARY).exists()
    target_vocabulary = folder / (TARGET_VOCABULARY if separate else VOCABULARY)
    for path in (folder / VOCABULARY, target_vocabulary, source_path, target_path):
        if not path.is_file():
            raise ModelFolderError(f"{path}: no such file, expected one as MarianTokenizer saves it")
    source = _marian_tokenizer(source_path, folder / VOCABULARY, config, config.vocabulary)
    if not separate and source_path.read_bytes() == target_path.read_bytes():
        return source, source
    return source, _marian_tokenizer(target_path, target_vocabulary, config, config.target_vocabulary)


def _marian_tokenizer(path: Path, vocabulary: Path, config: ForeignConfig, size: int) -> Tokenizer:
    pieces = _pieces(vocabulary)
    if len(pieces) != size:
        raise DataError(f"{vocabulary}: found {len(pieces):,} tokens, expected {size:,} by config.json")
    tokenizer = _sentencepiece_tokenizer(path, vocabulary, config, pieces)
    if tokenizer.specials.eos in (tokenizer.specials.pad, tokenizer.specials.bos):
        raise SettingsError(f"{config.place}: eos_token_id: found {config.eos}, which means something else too")
    return tokenizer


def _sentencepiece_tokenizer(
    path: Path,
    vocabulary: Path,
    config: ForeignConfig,
    pieces: Sequence[str],
    languages: Mapping[str, int] | None = None,
) -> Tokenizer:
    """Return the tokenizer whose model is in `path` and whose pieces, in order of ids, are from `vocabulary`."""
    if UNKNOWN not in pieces:
        raise DataError(f"{vocabulary}: lacks {UNKNOWN}, which every vocabulary of transformers has")
    specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=pieces.index(UNKNOWN))
    if specials.eos in (specials.pad, specials.unk):
        raise SettingsError(f"{config.place}: eos_token_id: found {specials.eos}, which means something else too")
    return Tokenizer(
        Vocabulary(
            settings=sentencepiece_settings(len(pieces)),
            specials=specials,
            pieces=tuple(pieces),
            first=0,
            sentences=replace(read_sentencepiece(path), codes=languages is None),
            languages=languages or {},
            silent=frozenset() if languages is None else frozenset({pieces.index(BOS)} if BOS in pieces else ()),
        )
    )


def read_m2m100_tokenizer(folder: Path, config: ForeignConfig) -> Tokenizer:
    """Read the tokenizer of M2M-100: vocab.json, then the tags of 100 languages, then ids without a meaning.

    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for unsupported options.
    """
    path, vocabulary = folder / BPE, folder / VOCABULARY
    for each in (path, vocabulary):
        if not each.is_file():
            raise ModelFolderError(f"{each}: no such file, expected one as M2M100Tokenizer saves it")
    languages: list[str] = resolve_name(M2M100_LANGUAGES)[
        read_json(folder / TOKENIZER_CONFIG).get("language_codes", "m2m100")
    ]
    pieces = [*_pieces(vocabulary), *map(language_tag, languages)]
    if len(pieces) > config.vocabulary:
        raise SettingsError(
            f"{config.place}: vocab_size: found {config.vocabulary:,}, expected at least {len(pieces):,}, those of "
            f"{VOCABULARY} and {len(languages)} languages"
        )
    first = len(pieces) - len(languages)
    pieces += [f"<unused {number}>" for number in range(len(pieces), config.vocabulary)]
    return _sentencepiece_tokenizer(
        path, vocabulary, config, pieces, {code: first + place for place, code in enumerate(languages)}
    )


def m2m100_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the M2M100Tokenizer of a model that was imported with one; None for another model.

    Raises SettingsError if M2M100Tokenizer does not have the languages of the model.
    """
    from transformers import M2M100Tokenizer

    vocabulary = checkpoint.source_tokenizer.vocabulary
    if vocabulary.sentences is None or not vocabulary.languages:
        return None
    lists: Mapping[str, list[str]] = resolve_name(M2M100_LANGUAGES)
    name = next((name for name, codes in lists.items() if codes == list(vocabulary.languages)), None)
    if name is None:
        raise SettingsError(
            f"languages: found {', '.join(vocabulary.languages)}, expected those of M2M100Tokenizer for huggingface"
        )
    first = min(vocabulary.languages.values())
    ids = {piece.replace(" ", SPACE): id_ for id_, piece in enumerate(vocabulary.pieces[:first])}
    with TemporaryDirectory() as written:
        folder = Path(written)
        (folder / VOCABULARY).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        (folder / BPE).write_bytes(write_sentencepiece(vocabulary.sentences))
        return M2M100Tokenizer(
            str(folder / VOCABULARY),
            str(folder / BPE),
            language_codes=name,
            model_max_length=checkpoint.config.model.max_positions,
        )


def sentencepiece_settings(size: int) -> TokenizerSettings:
    """Return the [tokenizer] settings of a model with SentencePiece's normalisation rules."""
    return TokenizerSettings(kind="sentencepiece", size=max(size, 8), normalization="none", unknown="token")


def _pieces(path: Path) -> tuple[str, ...]:
    """Return the pieces in order of ids, with SentencePiece's space marks replaced by spaces."""
    try:
        ids: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise DataError(f"{path}: expected a JSON object of tokens, each with its id, 0, 1, 2, …")
    pieces = tuple(piece.replace(SPACE, " ") for piece in sorted(ids, key=ids.__getitem__))
    if len(set(pieces)) != len(pieces) or "" in pieces:
        raise DataError(f"{path}: a token is empty, or occurs twice")
    return pieces
