"""Read the tokenizers of transformers that the `tokenizers` library runs, with the tags of their languages."""

import json
import re
from pathlib import Path

from transformers import AutoTokenizer

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.interchange.huggingface.compare import READ_ERRORS, suppress_transformers_output
from translume.interchange.huggingface.config import ForeignConfig
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.library import LibraryIds


def read_wrapped_tokenizer(folder: Path, config: ForeignConfig, codes: str, *, special: str = "") -> Tokenizer:
    """Return the tokenizer of a folder, run by the library as transformers runs it.

    codes: a regular expression for the special tokens that are tags of languages; empty if the token that begins every
    text stands in their place, for a language without a code. Its group, if it has one, is the code.
    special: a regular expression for further special tokens, which are no text.
    Raises DataError for damaged files, SettingsError for a tokenizer that is not supported.
    """
    with suppress_transformers_output():
        try:
            theirs = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except READ_ERRORS as error:
            reason = f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
            raise DataError(f"{folder}: transformers cannot read the tokenizer ({reason})") from None
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise SettingsError(
            f"{folder}: tokenizer_class: found {type(theirs).__name__}, expected one that the tokenizers library runs"
        )
    if getattr(theirs, "legacy_behaviour", False):
        raise SettingsError(
            f"{folder}: legacy_behaviour: found true, expected false: the tag of the language begins a text"
        )
    if theirs.unk_token_id is None:
        raise SettingsError(f"{folder}: unk_token: found null, expected the token of unknown characters")
    document = json.loads(backend.to_str())
    for token in document["added_tokens"]:
        token["special"] |= bool(special and re.fullmatch(special, token["content"]))
    added = backend.get_added_tokens_decoder()
    languages = {"": theirs.cls_token_id}
    if codes:
        tags = {id_: re.fullmatch(codes, token.content) for id_, token in added.items() if token.special}
        languages = {tag[tag.lastindex or 0]: id_ for id_, tag in tags.items() if tag}
    try:
        library = LibraryIds(document, config.vocabulary)
        settings = TokenizerSettings(
            kind="library", size=max(config.vocabulary, 8), normalization="none", unknown="token"
        )
        specials = SpecialIds(pad=config.pad, bos=config.bos, eos=config.eos, unk=theirs.unk_token_id)
        return Tokenizer(Vocabulary.of_library(settings, specials, library, languages))
    except ValueError as error:
        raise SettingsError(f"{folder}: tokenizer: {error}") from None
