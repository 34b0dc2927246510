"""Recordings: their languages, and windows one after the other, whose times show where the next one begins.

As Whisper transcribes (Radford et al. 2023, section 4.5), without repeating a window at higher temperatures.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import Fusion, SearchError, Stepper
from translume.lazy import inference_mode, torch
from translume.text import Tokenizer
from translume.text.specials import UNKNOWN_LANGUAGE, SpeechTokens
from translume.translator.assembly import ProgressCallback, quality_warnings
from translume.translator.planning import FULL_BATCH_WIDTH, LineError, LinePlan, Piece, batches, frame_ids
from translume.translator.results import Segment, TextHypothesis, Translation
from translume.translator.search import CancelCheck, SearchPlan, prepare_search, sources_for, start_of

FRAMES_PER_TIME, FRAMES_PER_SECOND = 2, 100
"""Frames from one token of time to the next, 20 ms, and in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A segment of a window.  start, end: in frames of the recording.  tokens: its part of the target, with times."""

    start: int
    end: int
    tokens: slice


def spans_of(ids: Sequence[int], first: int, begin: int, length: int) -> tuple[list[Span], int]:
    """Return the segments in the target of a window, and the number of frames after which the next window begins.

    ids: without EOS.  first: the token of the time 0.  begin, length: of the window, in frames.
    A segment that the target does not finish is left out: the next window begins there. As transformers does.
    """
    timed = [id_ >= first for id_ in ids]
    stops = [place for place in range(1, len(ids)) if timed[place - 1] and timed[place]]

    def frames(id_: int) -> int:
        return (id_ - first) * FRAMES_PER_TIME

    if not stops:
        last = next((id_ for id_ in reversed(ids) if id_ >= first), first)
        end = frames(last) or length // FRAMES_PER_TIME * FRAMES_PER_TIME
        return [Span(start=begin, end=begin + end, tokens=slice(0, len(ids)))], length
    complete = timed[-2:] == [False, True]  # the target ends with the end of a segment, after which nothing is said
    if complete:
        stops.append(len(ids))
    else:
        stops[-1] += 1  # with the time at which the next segment begins
    spans, start = [], 0
    for number, stop in enumerate(stops, start=1):
        last = stop - 1 if complete or number < len(stops) else stop - 2
        spans.append(Span(start=begin + frames(ids[start]), end=begin + frames(ids[last]), tokens=slice(start, stop)))
        start = stop
    return spans, length if complete else frames(ids[start - 2])


@dataclass(slots=True, kw_only=True)
class Recording:
    """A recording and what is written for it so far.

    prompt: the ids after BOS, without times.  timed: whether the target has times.
    begin: of the next window, in frames.  hypotheses: of a target without times; the parts of one with times.
    """

    plan: LinePlan
    frames: NDArray[np.float32]
    window: int
    prompt: tuple[int, ...]
    timed: bool
    begin: int = 0
    hypotheses: list[TextHypothesis] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether nothing but digital silence is left."""
        rest = self.frames[self.begin :]
        return not len(rest) or float(np.ptp(rest)) == 0.0

    def piece(self, tokens: SpeechTokens) -> Piece:
        """Return the next window."""
        part = self.frames[self.begin : self.begin + self.window]
        return Piece(
            ids=frame_ids(part, self.window // FRAMES_PER_TIME),
            frames=part,
            first=not self.begin,
            target_tags=tokens.timed(self.prompt) if self.timed else self.prompt,
        )

    def add(self, hypotheses: Sequence[TextHypothesis], tokenizer: Tokenizer, first: int) -> None:
        """Add the hypotheses for a window, best first, and move on to the next one.  first: the token of the time 0."""
        length = min(self.window, len(self.frames) - self.begin)
        if not self.timed:
            self.hypotheses = [replace(each, text=each.text.strip()) for each in hypotheses]
            self.begin += length
            return
        best = hypotheses[0]
        ids = best.ids[:-1] if best.finished_by == "eos" else best.ids
        spans, moved = spans_of(ids, first, self.begin, length)
        for span in spans:
            if text := tokenizer.decode(ids[span.tokens]).strip():
                start, end = span.start / FRAMES_PER_SECOND, span.end / FRAMES_PER_SECOND
                self.segments.append(Segment(start=start, end=end, text=text))
        kept = spans[-1].tokens.stop
        self.hypotheses.append(
            replace(
                best,
                text=tokenizer.decode(ids[:kept]),
                tokens=best.tokens[:kept],
                ids=ids[:kept],
                token_log_probs=best.token_log_probs[:kept],
            )
        )
        self.begin += moved or length

    def translation(self, tokens: SpeechTokens) -> Translation:
        """Return what was written."""
        hypotheses = tuple(self.hypotheses)
        if self.timed and hypotheses:
            total = sum(value for part in hypotheses for value in part.token_log_probs)
            text = "".join(part.text for part in hypotheses).strip()
            hypotheses = (TextHypothesis.joined(hypotheses, text=text, log_prob=total, score=total),)
        language = next((code for code, id_ in tokens.languages.items() if id_ in self.prompt[:1]), "")
        text = hypotheses[0].text if hypotheses else ""
        cut = bool(hypotheses) and hypotheses[0].finished_by == "length"
        return Translation(
            source=self.plan.line.text,
            text=text,
            hypotheses=hypotheses,
            warnings=self.plan.warnings,
            quality_warnings=tuple(quality_warnings("", text, cut=cut)),
            segments=tuple(self.segments),
            language=language,
        )


@dataclass(frozen=True, slots=True)
class Transcriber:
    """Writes what is said in recordings, with the settings of a search.

    stepper: takes the steps.  fusion: a language model for ranking.
    """

    checkpoint: Checkpoint
    settings: DecodingSettings
    stepper: Stepper
    fusion: Fusion | None = None

    def write(
        self,
        plans: Sequence[LinePlan],
        on_progress: Mapping[int, ProgressCallback],
        check_cancelled: CancelCheck | None = None,
    ) -> list[Translation]:
        """Return the translations of recordings, one piece each, whose windows are searched in common batches.

        on_progress: by line number, called with the text of the windows that are done.
        """
        tokens = self.checkpoint.target_tokenizer.vocabulary.speech_tokens()
        recordings = [self._recording(plan) for plan in plans]
        while rest := [each for each in recordings if not each.done]:
            for timed in (False, True):
                for batch in self._batches([each for each in rest if each.timed == timed]):
                    if check_cancelled is not None:
                        check_cancelled()
                    self._search(batch, tokens, check_cancelled)
                    for each in batch:
                        if report := on_progress.get(each.plan.line.number):
                            report("".join(part.text for part in each.hypotheses).strip())
        return [each.translation(tokens) for each in recordings]

    def segments(self, plan: LinePlan) -> Generator[Segment, None, Translation]:
        """Yield the segments of a recording when their window is done, and return its translation."""
        tokens = self.checkpoint.target_tokenizer.vocabulary.speech_tokens()
        recording = self._recording(plan)
        while not recording.done:
            before = len(recording.segments)
            self._search([recording], tokens, None)
            yield from recording.segments[before:]
        return recording.translation(tokens)

    def _recording(self, plan: LinePlan) -> Recording:
        (piece,) = plan.pieces
        window: int = self.checkpoint.config.data.source.window
        frames = np.zeros((0, 1), np.float32) if piece.frames is None else piece.frames
        if plan.line.constraints:
            raise LineError(plan.line, "found constraints, expected none for a recording")
        timed = self.settings.timestamps or len(frames) > window
        return Recording(plan=plan, frames=frames, window=window, prompt=piece.target_tags, timed=timed)

    def _batches(self, recordings: Sequence[Recording]) -> Iterator[list[Recording]]:
        """Yield recordings whose next windows are searched together."""
        width = max(SearchPlan.from_settings(self.settings).width, FULL_BATCH_WIDTH)
        most = self.settings.max_tokens * FULL_BATCH_WIDTH // width
        for batch in batches([each.window // FRAMES_PER_TIME for each in recordings], most):
            yield [recordings[place] for place in sorted(batch)]

    def _search(
        self, recordings: Sequence[Recording], tokens: SpeechTokens, check_cancelled: CancelCheck | None
    ) -> None:
        """Write the targets of the next windows of recordings, all with times or all without.

        Unknown languages are detected in the first window, which is encoded once for both.
        """
        tokenizer, timed = self.checkpoint.target_tokenizer, recordings[0].timed
        search = SearchPlan.from_settings(self.settings.model_copy(update={"timestamps": timed}))
        pieces = [each.piece(tokens) for each in recordings]
        encoded = None
        if unknown := [place for place, each in enumerate(recordings) if UNKNOWN_LANGUAGE in each.prompt]:
            with inference_mode():
                start = start_of(self.stepper, needs_attention=search.needs_attention)
                encoded = start(*sources_for(self.stepper, self.checkpoint, pieces))
            languages = detected_languages(self.checkpoint, self.stepper, encoded, len(pieces))
            for place in unknown:
                recordings[place].prompt = tokens.with_language(recordings[place].prompt, languages[place])
            pieces = [each.piece(tokens) for each in recordings]
        try:
            prepared = prepare_search(self.checkpoint, pieces, search.decoding, self.stepper, self.fusion, encoded)
            by_recording = prepared.run(check_cancelled=check_cancelled)
        except SearchError as error:
            raise LineError(recordings[error.sentence].plan.line, f"token {error.token}: {error.reason}") from None
        for recording, hypotheses in zip(recordings, search.rank(by_recording, pieces, self.checkpoint), strict=True):
            recording.add(hypotheses, tokenizer, tokens.first_time)


@inference_mode()
def detected_languages(checkpoint: Checkpoint, stepper: Stepper, encoded: Any, count: int) -> list[int]:
    """Return the tokens of the most likely languages of windows.  encoded: the state before their first token."""
    specials, device = checkpoint.target_tokenizer.specials, checkpoint.device
    ids = torch.tensor([*checkpoint.target_tokenizer.vocabulary.speech_tokens().languages.values()], device=device)
    belief, _ = stepper.step(torch.full((count, 1), specials.bos, device=device), encoded.branch())
    best: list[int] = ids[belief.log_prob_of(ids.expand(count, -1)).argmax(1)].tolist()
    return best
