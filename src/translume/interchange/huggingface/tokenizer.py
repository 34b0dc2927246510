"""Tokenizers of transformers: MarianTokenizer's and M2M100Tokenizer's files, and tokenizer.json in both directions."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import ValidationError
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as LibraryTokenizer

from translume.checkpoint import Checkpoint
from translume.config import TokenizerSettings
from translume.errors import DataError, ModelFolderError, SettingsError, check_known, expect_file, refused
from translume.interchange.huggingface.config import CONFIG, ForeignConfig, read_json
from translume.interchange.sentencepiece import read_sentencepiece
from translume.json_values import read_json as read_any_json
from translume.text import SentencePieces, SpecialIds, Tokenizer, Vocabulary
from translume.text.imported import SPACE, LibraryIds, read_library, scores_of
from translume.text.library import unknown_id
from translume.text.standard import compare_with_library, standard_json
from translume.text.vocabulary import BOS, EOS, PAD, UNK, language_tag

NAME, TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
"""The class that runs any tokenizer.json as it is, by its names in releases of transformers, without "Fast"."""
_FORMS: dict[str, Literal["nfc", "nfd", "nfkc"]] = {"NFC": "nfc", "NFD": "nfd", "NFKC": "nfkc"}
_KINDS: dict[str, Literal["bpe", "unigram"]] = {"BPE": "bpe", "Unigram": "unigram"}
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SOURCE, TARGET, BPE, SPIECE = "source.spm", "target.spm", "sentencepiece.bpe.model", "spiece.model"
M2M100_LANGUAGES = "transformers.models.m2m_100.tokenization_m2m_100:FAIRSEQ_LANGUAGE_CODES"
PLBART_LANGUAGES = "transformers.models.plbart.tokenization_plbart:FAIRSEQ_LANGUAGE_CODES"
"""Where transformers keeps the lists of languages of tokenizers of M2M-100 and PLBart, by name."""


def library_tokenizer(tokenizer: Tokenizer) -> LibraryTokenizer:
    """Return a tokenizer of the `tokenizers` library with the same ids, which adds EOS and has special tokens.

    Raises SettingsError for a kind that the library cannot express, and if the two disagree on a text.
    """
    settings, pieces = tokenizer.settings, tokenizer.pieces()
    if settings.kind != "bpe" and (settings.kind, settings.unknown) != ("unigram", "token"):
        raise SettingsError(
            f"tokenizer.kind: found '{settings.kind}' with unknown = '{settings.unknown}', "
            "expected 'bpe', or 'unigram' with unknown = 'token', for huggingface"
        )
    library: LibraryTokenizer = LibraryTokenizer.from_str(standard_json(tokenizer))
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    ids = tokenizer.specials
    special = [pieces[id_] for id_ in (ids.pad, ids.bos, ids.eos, ids.unk, *ids.after_eos) if id_ is not None]
    library.add_special_tokens([AddedToken(piece, special=True) for piece in special])
    library.encode_special_tokens = True  # `</s>` in a user's text is text
    return library


def tokenizer_class(folder: Path) -> str:
    """Return `tokenizer_class` of tokenizer_config.json, or of config.json; empty if there is none."""
    for name in (TOKENIZER_CONFIG, CONFIG):
        path = folder / name
        found = read_json(path).get("tokenizer_class") if path.exists() else None
        if isinstance(found, str):
            return found
    return ""


def is_generic(folder: Path) -> bool:
    """Return whether transformers runs the tokenizer.json of a folder as it is."""
    return tokenizer_class(folder).removesuffix("Fast") in _GENERIC


def read_tokenizer(
    folder: Path,
    config: ForeignConfig,
    codes: str = "",
    special: str = "",
    known: Sequence[str] = (),
    *,
    endless: bool = False,
) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizer of both sides: that of an export, or as `read_wrapped_tokenizer`.

    known: the classes that need no tokenizer.json; empty if none does.
    """
    if is_generic(folder) and is_exported(folder):
        return read_exported_tokenizer(folder, config)
    if not (folder / NAME).exists():
        if not known:
            raise ModelFolderError(f"{folder}: no tokenizer, expected its {NAME}")
        if (found := tokenizer_class(folder).removesuffix("Fast")) not in known:
            raise SettingsError(f"{folder}: tokenizer_class: found {found!r}, expected {' or '.join(map(repr, known))}")
    tokenizer = read_wrapped_tokenizer(folder, config, codes, special=special, endless=endless)
    return tokenizer, tokenizer


def is_exported(folder: Path) -> bool:
    """Return whether `translume export` wrote the tokenizer.json of a folder. Raises DataError for a damaged file."""
    try:
        read_library_tokenizer(folder)
    except SettingsError:
        return False
    return True


def read_exported_tokenizer(folder: Path, config: ForeignConfig) -> tuple[Tokenizer, Tokenizer]:
    """Read the tokenizer of both sides, if `translume export` wrote it.

    Raises SettingsError for one that does not fit config.json, and as `read_library_tokenizer`.
    """
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

    Raises ModelFolderError if there is none, DataError for a damaged file, SettingsError for one that gives other ids
    for some texts.
    """
    path = folder / NAME
    if not path.exists():
        raise ModelFolderError(f"{folder}: no tokenizer, expected its {NAME}")
    document = read_json(path)
    try:
        tokenizer = Tokenizer.from_json(_settings_text(document), str(path))
        library = read_library(document)
    except (KeyError, TypeError, AttributeError, ValidationError, ValueError, DataError):
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote") from None
    library.encode_special_tokens = True
    try:
        compare_with_library(tokenizer, library, tokenizer.pieces(), skip_special=True)
    except SettingsError as error:
        raise SettingsError(f"{path}: not a tokenizer that `translume export` wrote: {error}") from None
    return tokenizer


def _settings_text(document: dict[str, Any]) -> str:
    """Return the text of our own tokenizer.json with the same settings. Raises ValueError and KeyError for another."""
    model = document["model"]
    steps = [step["type"] for step in document["normalizer"]["normalizers"]]
    if unknown := {*steps} - {*_FORMS, "Lowercase", "Replace", "Strip"}:
        raise ValueError(f"normalizer: found {min(unknown)}")
    settings = TokenizerSettings(
        kind=_KINDS[model["type"]],
        size=max(len(model["vocab"]), 8),
        normalization=next((_FORMS[step] for step in steps if step in _FORMS), "none"),
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
        expect_file(path, "one as MarianTokenizer saves it")
    refuse_added_tokens(folder, {*read_pieces(folder / VOCABULARY), *read_pieces(target_vocabulary)})
    source = _marian_tokenizer(source_path, folder / VOCABULARY, config, config.vocabulary)
    if not separate and source_path.read_bytes() == target_path.read_bytes():
        return source, source
    return source, _marian_tokenizer(target_path, target_vocabulary, config, config.target_vocabulary)


def refuse_added_tokens(folder: Path, pieces: Collection[str]) -> None:
    """Raise SettingsError if transformers finds tokens in a text that are neither `pieces` nor the usual special ones.

    `add_tokens` and `add_special_tokens` make such tokens. Here they would be ordinary text.
    """
    stated, named, library = (
        read_json(folder / name) if (folder / name).exists() else {} for name in (TOKENIZER_CONFIG, ADDED_TOKENS, NAME)
    )
    added = {*named, *(str(each.get("content")) for each in library.get("added_tokens") or ())}
    added |= {str(each.get("content")) for each in (stated.get("added_tokens_decoder") or {}).values()}
    for name, value in stated.items():
        if name.endswith("_token"):
            added.discard(str(value.get("content") if isinstance(value, dict) else value))
    if others := sorted(added - {PAD, BOS, EOS, UNK, *pieces}):
        raise SettingsError(
            f"{folder}: added tokens: found {', '.join(map(repr, others[:3]))}, which transformers finds in texts, "
            "expected only pieces of the SentencePiece model"
        )


def _marian_tokenizer(path: Path, vocabulary: Path, config: ForeignConfig, size: int) -> Tokenizer:
    pieces = read_pieces(vocabulary)
    known = len(pieces)
    if not max(config.pad, config.bos, config.eos) < known <= size:
        raise DataError(f"{vocabulary}: found {known:,} tokens, expected {size:,} by config.json")
    pieces += tuple(f"<unused_{number}>" for number in range(known, size))
    if config.eos in (config.pad, config.bos):
        raise ambiguous_eos(config)
    return sentencepiece_tokenizer(read_sentencepiece(path), vocabulary, pieces, config, silent=range(known, size))


def sentencepiece_tokenizer(
    sentences: SentencePieces,
    place: Path,
    pieces: Sequence[str],
    config: ForeignConfig,
    *,
    languages: Mapping[str, int] | None = None,
    silent: Iterable[int] = (),
    after_eos: tuple[int, ...] = (),
) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model with these pieces, in order of ids, which are from `place`."""
    if UNK not in pieces:
        raise DataError(f"{place}: lacks {UNK}, which every vocabulary of transformers has")
    silent, ordinary = set(silent), scores_of(sentences.proto)
    started = config.bos not in silent | {config.pad, config.eos} and pieces[config.bos] in ordinary
    specials = SpecialIds(
        pad=config.pad,
        bos=config.bos,
        eos=config.eos,
        unk=pieces.index(UNK),
        start_is_text=started,
        after_eos=after_eos,
    )
    if specials.eos in (specials.pad, specials.unk):
        raise ambiguous_eos(config)
    try:
        return Tokenizer(Vocabulary.from_sentencepiece(sentences, pieces, specials, languages=languages, silent=silent))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def ambiguous_eos(config: ForeignConfig) -> SettingsError:
    return SettingsError(f"{config.place}: eos_token_id: found {config.eos}, which means something else too")


def read_m2m100_tokenizer(folder: Path, config: ForeignConfig) -> Tokenizer:
    """Read the tokenizer of M2M-100: vocab.json, then the tags of 100 languages, then ids without a meaning.

    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for unsupported options.
    """
    path, vocabulary = folder / BPE, folder / VOCABULARY
    for each in (path, vocabulary):
        expect_file(each, "one as M2M100Tokenizer saves it")
    languages: list[str] = resolve_name(M2M100_LANGUAGES)[
        read_json(folder / TOKENIZER_CONFIG).get("language_codes", "m2m100")
    ]
    pieces = [*read_pieces(vocabulary), *map(language_tag, languages)]
    if len(pieces) > config.vocabulary:
        raise SettingsError(
            f"{config.place}: vocab_size: found {config.vocabulary:,}, expected at least {len(pieces):,}, those of "
            f"{VOCABULARY} and {len(languages)} languages"
        )
    first = len(pieces) - len(languages)
    pieces += [f"<unused {number}>" for number in range(len(pieces), config.vocabulary)]
    return sentencepiece_tokenizer(
        read_sentencepiece(path, codes=False),
        vocabulary,
        pieces,
        config,
        languages={code: first + place for place, code in enumerate(languages)},
        silent=[pieces.index(BOS)] if BOS in pieces else [],
    )


def read_plbart_tokenizer(folder: Path, config: ForeignConfig) -> Tokenizer:
    """Read the tokenizer of PLBart: SentencePiece with the ids of fairseq, then tags, and `<mask>` in the first models.

    The tag of the language that tokenizer_config.json names is read after the EOS of a source.
    Raises ModelFolderError for a missing file, DataError for a damaged one, SettingsError for unsupported options.
    """
    path, place = folder / BPE, folder / TOKENIZER_CONFIG
    expect_file(path, "one as PLBartTokenizer saves it")
    stated = read_json(place)
    lists: Mapping[str, list[str]] = resolve_name(PLBART_LANGUAGES)
    kind = str(stated.get("language_codes", "base"))
    check_known(f"{place}: language_codes", kind, lists)
    tags = {tag[2:-2]: tag for tag in lists[kind]}
    source = str(stated.get("src_lang") or ("en_XX" if kind == "multi" else "")).removeprefix("__").removesuffix("__")
    if source:
        check_known(f"{place}: src_lang", source, tags)
    sentences = read_sentencepiece(path, codes=False)
    known = [BOS, PAD, EOS, UNK, *(each.piece for each in sentences.proto.pieces[3:])]
    pieces = [*known, *tags.values(), *(["<mask>"] if kind == "base" else [])]
    if len(pieces) > config.vocabulary:
        raise DataError(f"{path}: found {len(pieces):,} tokens, expected at most {config.vocabulary:,} by config.json")
    silent = {0, *range(len(known), config.vocabulary)} - {config.bos}
    pieces += [f"<unused_{number}>" for number in range(len(pieces), config.vocabulary)]
    after = (pieces.index(tags[source]),) if source else ()
    return sentencepiece_tokenizer(sentences, path, pieces, config, silent=silent, after_eos=after)


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
        (folder / BPE).write_bytes(vocabulary.sentences.content)
        return M2M100Tokenizer(
            str(folder / VOCABULARY),
            str(folder / BPE),
            language_codes=name,
            model_max_length=checkpoint.config.model.max_positions,
        )


def marian_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the MarianTokenizer of a model that was imported with SentencePiece; None for another model."""
    from transformers import MarianTokenizer

    sides = [each.vocabulary for each in (checkpoint.source_tokenizer, checkpoint.target_tokenizer)]
    if any(each.sentences is None or each.languages for each in sides):
        return None
    specials, pieces = sides[0].specials, sides[0].pieces
    assert specials.unk is not None
    with TemporaryDirectory() as written:
        files = [
            [Path(written) / name for name in names] for names in ((SOURCE, VOCABULARY), (TARGET, TARGET_VOCABULARY))
        ]
        for vocabulary, (model, ids) in zip(sides, files, strict=True):
            assert vocabulary.sentences is not None
            known = {piece.replace(" ", SPACE): id_ for id_, piece in enumerate(vocabulary.pieces)}
            model.write_bytes(vocabulary.sentences.content)
            ids.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
        return MarianTokenizer(
            *(str(file) for file in (files[0][0], files[1][0], files[0][1], files[1][1])),
            unk_token=pieces[specials.unk],
            eos_token=pieces[specials.eos],
            pad_token=pieces[specials.pad],
            model_max_length=checkpoint.config.model.max_positions,
            separate_vocabs=sides[0].pieces != sides[1].pieces,
        )


def read_pieces(path: Path) -> tuple[str, ...]:
    """Return the pieces of a vocab.json in order of ids."""
    with refused(path, "cannot be read"):
        ids = read_any_json(path, object)
    if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
        raise DataError(f"{path}: expected a JSON object of tokens, each with its id, 0, 1, 2, …")
    return tuple(sorted(ids, key=ids.__getitem__))


def read_wrapped_tokenizer(
    folder: Path,
    config: ForeignConfig,
    codes: str = "",
    *,
    special: str = "",
    sources: bool = True,
    endless: bool = False,
) -> Tokenizer:
    """Return the tokenizer of a folder, run by the library as transformers runs it.

    codes: a regular expression for the tokens that are tags of languages. Its last group, if it has one, is the code.
    Without any, the token that begins every text stands in their place, for a language without a code.
    special: a regular expression for further special tokens, which are no text.  sources: whether it reads sources.
    endless: whether a text may have no EOS after it.
    Raises DataError for damaged files, SettingsError for a tokenizer that is not supported.
    """
    from translume.interchange.huggingface.loading import load_tokenizer

    theirs = load_tokenizer(folder)
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise SettingsError(
            f"{folder}: tokenizer_class: found {type(theirs).__name__}, expected one that the tokenizers library runs"
        )
    if getattr(theirs, "legacy_behaviour", False):
        raise SettingsError(
            f"{folder}: legacy_behaviour: found true, expected false: the tag of the language begins a text"
        )
    document, ids = json.loads(backend.to_str()), backend.get_vocab(with_added_tokens=True)
    tags = {id_: match for piece, id_ in ids.items() if codes and (match := re.fullmatch(codes, piece))}
    reserved = tags.keys() | {id_ for piece, id_ in ids.items() if special and re.fullmatch(special, piece)}
    for token in document["added_tokens"]:
        token["special"] |= token["id"] in reserved
    added = {token["id"] for token in document["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = {id_: piece for piece, id_ in ids.items()}
    document["added_tokens"] += [{"id": id_, "content": names[id_], **flags} for id_ in sorted(reserved - added)]
    languages = {tag[tag.lastindex or 0]: id_ for id_, tag in sorted(tags.items())}
    around = theirs("")["input_ids"]
    ends = not endless or around[-1:] == [config.eos]
    before = _before(folder, [*around, *([] if ends else [config.eos])], config, tags) if sources else []
    if before and not tags:
        languages[""] = before[0]
    try:
        library = LibraryIds(document, config.vocabulary)
        unk = unknown_id(document["model"], ids) if theirs.unk_token_id is None else theirs.unk_token_id
        specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=unk, ends_source=ends)
        return Tokenizer(Vocabulary.from_library(specials, library, languages))
    except ValueError as error:
        raise SettingsError(f"{folder}: tokenizer: {error}") from None


def _before(folder: Path, around: Sequence[int], config: ForeignConfig, tags: Collection[int]) -> list[int]:
    """Return the token that begins every text, if there is one.  around: the ids of an empty text.

    Raises SettingsError if others are added, or if it is no tag although there are some.
    """
    *before, end = around or [-1]
    if end != config.eos or len(before) > 1 or (tags and not {*tags} >= {*before}):
        raise SettingsError(
            f"{folder}: post_processor: found the ids {before} before a text and {end} after it, expected "
            f"{'the tag of a language' if tags else 'at most one id'} and {config.eos}"
        )
    return before
