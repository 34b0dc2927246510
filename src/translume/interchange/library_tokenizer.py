"""Our tokenizer as one of the `tokenizers` library alone, which transformers reads from a `tokenizer.json`."""

import re

import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer

from translume.errors import SettingsError, TranslumeError
from translume.text import Tokenizer
from translume.text.segmentation import UNSPACED, segment_pattern

TEXTS, LONGEST = 200, 23
"""Made-up texts on which both must agree, and their most tokens."""

_SPACES = "".join(f"\\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace())
"""White space as Python's `str.split` sees it, which is more than `\\s` of other dialects."""


def library_tokenizer(tokenizer: Tokenizer) -> LibraryTokenizer:
    """The same ids for the same text, with the end mark added; decoding leaves special tokens out.

    Raises SettingsError for a kind that the library cannot express, TranslumeError where the two do not agree.
    """
    settings, pieces, specials = tokenizer.settings, tokenizer.pieces(), tokenizer.specials
    if settings.kind != "bpe" and (settings.kind, settings.unknown) != ("unigram", "token"):
        raise SettingsError(
            f"tokenizer.kind: found '{settings.kind}' with unknown = '{settings.unknown}', "
            "wanted 'bpe', or 'unigram' with unknown = 'token', for huggingface"
        )
    model = tokenizer.library_model()
    library = LibraryTokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if settings.normalization != "none":
        steps.append(normalizers.NFKC() if settings.normalization == "nfkc" else normalizers.NFC())
    if settings.lowercase:
        steps.append(normalizers.Lowercase())
    if settings.whitespace == "collapse":
        steps += [normalizers.Replace(Regex(f"[{_SPACES}]+"), " "), normalizers.Strip()]
    unspaced = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in UNSPACED)
    steps.append(normalizers.Replace(Regex(rf"\A(?=[^{unspaced}])"), " "))  # the mark of the first word
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Split(Regex(_oniguruma(segment_pattern(settings.kind))), "isolated")
    end = pieces[specials.eos]
    library.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, specials.eos)]
    )
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    marks = (specials.pad, specials.bos, specials.eos, specials.unk)
    library.add_special_tokens([AddedToken(pieces[each], special=True) for each in marks if each is not None])
    library.encode_special_tokens = True  # typed by somebody, `</s>` is text
    _compare(tokenizer, library)
    return library


def _oniguruma(pattern: str) -> str:
    """A regular expression of Python in the library's dialect."""
    return re.sub(r"\\U([0-9a-f]{8})", lambda found: f"\\x{{{int(found.group(1), 16):x}}}", pattern)


def _compare(tokenizer: Tokenizer, library: LibraryTokenizer) -> None:
    specials = tokenizer.specials
    generator = torch.Generator().manual_seed(1)
    for _ in range(TEXTS):
        length = int(torch.randint(LONGEST, (), generator=generator))
        ids = torch.randint(specials.eos + 1, len(tokenizer), (length,), generator=generator).tolist()
        text = tokenizer.decode([each for each in ids if each != specials.unk])
        ours, theirs = [*tokenizer.encode(text), specials.eos], library.encode(text).ids
        if ours != theirs:
            raise TranslumeError(f"tokenizer: {text!r} has ids {theirs} in the export, wanted {ours}")
        if "\ufffd" not in text and library.decode(theirs) != tokenizer.decode(ours):
            raise TranslumeError(
                f"tokenizer: {library.decode(theirs)!r} in the export, wanted {tokenizer.decode(ours)!r}"
            )
