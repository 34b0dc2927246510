"""What is said in a recording as plain text, subtitles or JSON."""

import json

from translume.translator import Segment, Translation

FORMS = ("txt", "srt", "vtt", "json")
"""Plain text with a line for each segment; SubRip; WebVTT; the translation with its segments as JSON."""


def transcript(translation: Translation, form: str) -> str:
    """Return the translation of a recording in one of FORMS, with a line break at its end.

    Subtitles need `segments`. A `-->` within a text becomes `->`, since it would end a subtitle in WebVTT.
    """
    if form == "json":
        return json.dumps(translation.to_dict(), ensure_ascii=False) + "\n"
    if form == "txt" and not translation.segments:
        return f"{translation.text}\n"
    return header(form) + "".join(written(each, number, form) for number, each in enumerate(translation.segments))


def header(form: str) -> str:
    """Return what stands before the first segment."""
    return "WEBVTT\n" if form == "vtt" else ""


def written(segment: Segment, number: int, form: str) -> str:
    """Return the segment with this number, from 0, in "txt", "srt" or "vtt"; see `transcript`."""
    if form == "txt":
        return f"{segment.text}\n"
    point = "," if form == "srt" else "."
    times = f"{_time(segment.start, point)} --> {_time(segment.end, point)}"
    cue = f"{times}\n{' '.join(segment.text.split()).replace('-->', '->')}\n"
    if form == "vtt":
        return f"\n{cue}"
    blank = "\n" if number else ""
    return f"{blank}{number + 1}\n{cue}"


def _time(seconds: float, point: str) -> str:
    whole, part = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{point}{part:03}"
