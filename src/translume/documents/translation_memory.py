"""Translation memories (TMX) as segments: missing translations are added; all else stays as it is written."""

import html

from translume.documents.marked_text import MarkedText, TextBuilder
from translume.documents.xliff import copy_content
from translume.documents.xml_text import XML, finished, parsed
from translume.errors import DocumentError


def read_tmx(data: bytes) -> MarkedText:
    """Read a translation memory, whose missing translations are added; DocumentError if it has no target language."""
    encoded, root = parsed(data)
    header = root.child("header")
    if root.name != "tmx" or header is None:
        raise DocumentError(f"found the root <{root.tag[:40]}>, expected <tmx> with a header")
    language = header.get("srclang")
    units = [[each for each in unit.children if each.name == "tuv" and each.child("seg")] for unit in root.all("tu")]
    if language == "*all*":
        language = next((unit[0].get("lang") for unit in units if unit), "")
    named = {each.get("lang").casefold(): each.get("lang") for unit in units for each in unit}
    named.pop(language.casefold(), None)
    if len(named) != 1:
        others = ", ".join(repr(each[:20]) for each in sorted(named.values())[:5])
        names = f"the languages {others}" if named else "no language"
        raise DocumentError(f"found {names} beside {language[:20]!r}, expected one: the language of the translations")
    ((folded, target),) = named.items()
    builder, end = TextBuilder(encoded, XML), 0
    for unit in units:
        by_language = {each.get("lang").casefold(): each for each in unit}
        source, other = by_language.get(language.casefold()), by_language.get(folded)
        seg = other.child("seg") if other else None
        if source and not (seg and encoded.text[seg.inside : seg.outside].strip()):
            tags = f'<tuv xml:lang="{html.escape(target)}"><seg>|</seg></tuv>'
            end = copy_content(builder, end, source.child("seg") or source, seg, source, tags)
    return finished(builder, end)
