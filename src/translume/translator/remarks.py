"""What is worth a warning about a finished target; the first word of a warning never changes."""

from collections.abc import Sequence

LONGEST_LOOP = 8
"""Most words in what is said again and again."""
LOOPS = 4
"""Times in a row from which that is a loop."""
SHORT, FEW = 0.3, 10
"""Words of a target for each of its source below which little of it was used, and fewest words of such a source."""


def remarks_on(source: str, target: str, *, cut: bool) -> list[str]:
    """What looks wrong about a target, as `word: detail`.

    `truncated`: it was cut at its limit, which `cut` says.  `repetition`: up to 8 words stand in it 4 times in a row
    or more, and more often than in the source.  `low_source_use`: it has less than 0.3 words for each word of a source
    of 10 or more.
    Words are what spaces part; of a text in which hardly any spaces are, they are its characters.
    """
    said, given = words_of(target), words_of(source)
    found = []
    if cut:
        found.append("truncated: the target reached its limit of tokens before its end")
    times, words = loop_in(said)
    if times >= LOOPS and times > loop_in(given)[0]:
        found.append(f"repetition: {' '.join(words)!r} stands {times} times in a row")
    if len(given) >= FEW and len(said) < SHORT * len(given) and spaced(source) == spaced(target):
        found.append(f"low_source_use: {len(said)} words for {len(given)} of the source")
    return found


def spaced(text: str) -> bool:
    """Whether a text is written with spaces: one for 20 characters, or it is that short."""
    return len(text) <= 20 * len(text.split())


def words_of(text: str) -> list[str]:
    """What spaces part, or the characters of a text written without."""
    return text.split() if spaced(text) else list("".join(text.split()))


def loop_in(words: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """How often some words stand in a row, at most, and which; of equally frequent ones the fewest, then the first."""
    times, loop = (1, tuple(words[:1])) if words else (0, ())
    for length in range(1, min(LONGEST_LOOP, len(words) // 2) + 1):
        run = 0
        for place in range(length, len(words)):
            run = run + 1 if words[place] == words[place - length] else 0
            if run // length + 1 > times:
                times, loop = run // length + 1, tuple(words[place - length + 1 : place + 1])
    return times, loop
