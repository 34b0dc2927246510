"""What is said in a recording as plain text, subtitles or JSON."""

import json
from collections.abc import Iterable, Iterator

from translume.translator import Segment, Translation

FORMS = ("txt", "srt", "vtt", "json")
"""Plain text with a line for each segment; SubRip; WebVTT; the translation with its segments as JSON."""


def transcript(translation: Translation, form: str) -> str:
    """Return the translation of a recording in one of FORMS, with a line break at its end.

    Subtitles need `segments`. A `-->` within a text becomes `->`, since it would end a subtitle in WebVTT.
    """
    segments = translation.segments
    if form == "json":
        return json.dumps(translation.to_dict(), ensure_ascii=False) + "\n"
    if form == "txt":
        return "".join(f"{line}\n" for line in [each.text for each in segments] or [translation.text])
    if form == "srt":
        return "\n".join(f"{number}\n{cue}" for number, cue in enumerate(_cues(segments, ","), start=1))
    return "WEBVTT\n" + "".join(f"\n{cue}" for cue in _cues(segments, "."))


def _cues(segments: Iterable[Segment], point: str) -> Iterator[str]:
    for each in segments:
        times = f"{_time(each.start, point)} --> {_time(each.end, point)}"
        yield f"{times}\n{' '.join(each.text.split()).replace('-->', '->')}\n"


def _time(seconds: float, point: str) -> str:
    whole, part = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{part:03}"
