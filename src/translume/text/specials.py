"""Ids of the special tokens, and of those with which a target of Whisper begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from translume.errors import SettingsError

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The pieces for single bytes."""
SECONDS_PER_TIME = 0.02
UNKNOWN_LANGUAGE = -1
"""Stands for the tag of a language that is not known yet."""
TRANSCRIBE, TRANSLATE, UNTIMED = "<|transcribe|>", "<|translate|>", "<|notimestamps|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of special tokens. No text is encoded to them. Code must not assume their values, nor that they differ.

    `unk` is None if characters outside the vocabulary are encoded as bytes.
    `start_is_text`: BOS is an ordinary piece, which stands for text everywhere but at the start of a target.
    `ends_source`: a source is read with EOS after it. Models that OpenNMT-py trained read none.
    `after_eos`: what is read after it, such as the tag of the language in PLBart.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None
    start_is_text: bool = False
    ends_source: bool = True
    after_eos: tuple[int, ...] = ()

    @property
    def source_end(self) -> tuple[int, ...]:
        """What follows the ids of a source: EOS, nothing, or EOS and a tag."""
        return (self.eos, *self.after_eos) if self.ends_source else ()

    @property
    def outside_text(self) -> frozenset[int]:
        """PAD and BOS, as far as they stand for no text."""
        return frozenset({self.pad} if self.start_is_text else {self.pad, self.bos})

    @property
    def marks(self) -> frozenset[int]:
        """The ids that no text is encoded to and that add nothing to a text: PAD, BOS and EOS."""
        return self.outside_text | {self.eos}

    @property
    def outside_targets(self) -> frozenset[int]:
        """The ids that no target holds. In BART, BOS is EOS, which every target holds."""
        return self.outside_text.union(() if self.unk is None else (self.unk,)) - {self.eos}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechTokens:
    """Ids of the special tokens of Whisper, such as tasks and times (Radford et al. 2023, section 2.3).

    languages: by code; empty for a model of English only.  transcribe, translate: the tasks, to write the language of
    the recording or English.  untimed: says that no times follow.
    """

    languages: Mapping[str, int]
    transcribe: int
    translate: int
    untimed: int

    @classmethod
    def from_pieces(cls, pieces: Sequence[str], languages: Mapping[str, int]) -> Self:
        """Find them in the pieces of a vocabulary, by id. Raises SettingsError if one is missing."""
        ids = {piece: id_ for id_, piece in enumerate(pieces)}
        for name in (TRANSCRIBE, TRANSLATE, UNTIMED):
            if name not in ids:
                raise SettingsError(f"tokenizer: {name} is missing, expected the vocabulary of an imported Whisper")
        return cls(languages=languages, transcribe=ids[TRANSCRIBE], translate=ids[TRANSLATE], untimed=ids[UNTIMED])

    @property
    def first_time(self) -> int:
        """The token of the time 0; the following ones are those of each 20 ms."""
        return self.untimed + 1

    def prompt(self, source: str, target: str) -> tuple[int, ...]:
        """Return the ids after BOS for the languages of a recording and its target, without times.

        source: empty for `UNKNOWN_LANGUAGE`.
        """
        if not self.languages:
            return (self.untimed,)
        task = self.transcribe if source == target else self.translate
        return (self.languages.get(source, UNKNOWN_LANGUAGE), task, self.untimed)

    def timed(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return a prompt after which times follow."""
        return tuple(id_ for id_ in prompt if id_ != self.untimed)

    def with_language(self, prompt: tuple[int, ...], language: int) -> tuple[int, ...]:
        """Return the prompt with a detected language. English is transcribed in any case."""
        task = self.transcribe if language == self.languages.get("en") else prompt[1]
        return (language, task, *prompt[2:])
