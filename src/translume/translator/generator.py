"""The generator: a language model that continues prompts and scores texts."""

import math
from collections import Counter
from collections.abc import Generator as Steps
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Literal, Unpack

import numpy as np

from translume.belief import Bias, NextToken
from translume.checkpoint import LanguageModelCheckpoint
from translume.config import DecodingOptions, DecodingSettings
from translume.decoding import (
    AfterTokens,
    BestHypotheses,
    ForbidTokens,
    Hypothesis,
    PromptedState,
    PromptedStep,
    RuleContext,
    SearchError,
    StablePrefix,
    Stepper,
    decode,
    strategy_from,
)
from translume.engine import Engine
from translume.errors import SettingsError, TranslationError, nearest
from translume.lazy import Tensor, inference_mode, torch
from translume.text import Tokenizer
from translume.translator.assembly import ProgressCallback
from translume.translator.constraints import build_rules, check_rules
from translume.translator.ensemble import EnsembleMembers
from translume.translator.loading import LoadedModel, describe_engine, engine_of
from translume.translator.planning import Line, LineError, Piece, windows
from translume.translator.ranking import MEASURES, minimum_bayes_risk
from translume.translator.results import TargetScore, TextHypothesis, parted_warnings
from translume.translator.scoring import Perplexity, label_log_probs
from translume.translator.search import STEPS_PER_CALL, CancelCheck, sampling_keys

_AT_ONCE = 1024
"""Texts that `perplexity` scores, and prompts that `generate_all` continues, in common batches."""
_SLIDING = ("greedy", "sampling")
"""Strategies that can continue a text beyond the context: those that never return to an earlier token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Texts that continue a prompt; `str()` is the best of them.

    hypotheses: best first; their texts do not include the prompt.  prompt_tokens: of the prompt, without BOS.
    warnings: as `word: detail`. `context_full`: the text ended because the model can read no more. `unknown`: part of
    the prompt is not in the vocabulary.
    """

    prompt: str
    text: str
    hypotheses: tuple[TextHypothesis, ...]
    prompt_tokens: int
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The generation as a JSON object."""
        return {
            "prompt": self.prompt,
            "text": self.text,
            "hypotheses": [hypothesis.to_dict() for hypothesis in self.hypotheses],
            "prompt_tokens": self.prompt_tokens,
            "warnings": parted_warnings(self.warnings),
        }


@dataclass(slots=True, kw_only=True)
class _Text:
    """A text in progress.  prompt: the number of its prompt.  labels: ids of the prompt and those found after it.

    total: of the ranking, before the length penalty.  ended: whether the last label is EOS.
    """

    prompt: int
    labels: list[int]
    log_probs: tuple[float, ...] = ()
    log_prob: float = 0.0
    total: float = 0.0
    ended: bool = False

    def with_part(self, hypothesis: Hypothesis) -> "_Text":
        """The text continued by a hypothesis."""
        return _Text(
            prompt=self.prompt,
            labels=[*self.labels, *hypothesis.tokens],
            log_probs=(*self.log_probs, *hypothesis.log_probs),
            log_prob=self.log_prob + hypothesis.log_prob,
            total=self.total + hypothesis.terms.total,
            ended=hypothesis.finished_by == "eos",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndAfterStrings:
    """Allows only EOS after a text with one of `strings`, from `minimum` tokens on."""

    tokenizer: Tokenizer
    strings: tuple[str, ...]
    minimum: int

    def __call__(self, prefix: Tensor, context: RuleContext) -> Bias | None:
        if context.step < max(1, self.minimum):
            return None
        tail = 1 + self.minimum + max(len(each.encode()) for each in self.strings)  # a token has a byte or more
        texts = [self.tokenizer.decode(row) for row in prefix[:, 1:][:, -tail:].tolist()]
        stopped = torch.tensor([_before(text, self.strings) != text for text in texts], device=prefix.device)
        if not bool(stopped.any()):
            return None
        ids = torch.arange(context.size, device=prefix.device)
        return Bias.only(~stopped[:, None] | (ids == context.eos))


def _before(text: str, strings: Sequence[str]) -> str:
    """The text before the first of some strings, or all of it."""
    return text[: min((place for each in strings if (place := text.find(each)) >= 0), default=None)]


def _settled(text: str, strings: Sequence[str]) -> str:
    """The text before the first of some strings, without an end that may be the beginning of one."""
    begun = (size for each in strings for size in range(1, min(len(each), len(text) + 1)) if text.endswith(each[:size]))
    cut = _before(text, strings)
    return cut if cut != text else text[: len(text) - max(begun, default=0)]


class Generator(LoadedModel[LanguageModelCheckpoint]):
    """A language model. No call changes it, so threads may share it."""

    checkpoint_class = LanguageModelCheckpoint

    def _facts(self) -> tuple[str, list[str]]:
        model, language = self.config.model, self.config.data.source_language
        return language and f"of {language}", [
            f"{model.decoder_layers} {'layer' if model.decoder_layers == 1 else 'layers'}",
            f"width {model.width}",
            f"{model.head.kind} head over {len(self.tokenizer):,} tokens",
            f"context {self.context}",
            describe_engine(self._engine),
        ]

    def compile(self, dtype: Literal["fp32", "bf16", "int8"] = "fp32") -> "Generator":
        """A generator of the same model that searches with weights packed for this machine; see `Translator.compile`.

        Raises EngineError (a SettingsError) if there is no engine for the model or the machine.
        """
        compiled = Generator(self.checkpoint, engine_of(self.checkpoint, dtype))
        return compiled.remember(self.folder, Generator.compile, self, dtype)

    def with_checkpoint(self, checkpoint: LanguageModelCheckpoint) -> "Generator":
        """A generator of the same model and engine with other settings."""
        return Generator(checkpoint, self._engine)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of documents."""
        return self.checkpoint.target_tokenizer

    @property
    def context(self) -> int:
        """The number of tokens that the model reads at most, BOS included: `data.block_length`."""
        return self.config.data.block_length

    def generate(
        self, prompt: str = "", *, settings: DecodingSettings | None = None, **options: Unpack[DecodingOptions]
    ) -> Generation:
        """Continue a prompt; an empty one begins a document.

        settings: instead of the model's own [decoding].
        options: single settings of `DecodingSettings`, which replace those of `settings`.
        `max_length` is the maximum number of tokens after the prompt; 0: as many as the model can read with the prompt.
        With strategies "sampling" and "greedy" a longer text is continued in windows of `context` tokens that move by
        half.
        Raises TranslationError if the prompt fills the context, SettingsError if the options do not fit.
        """
        return self._generate([prompt], self.choose(settings, options, function="generate"))[0]

    def generate_all(
        self,
        prompts: Iterable[str],
        *,
        settings: DecodingSettings | None = None,
        on_text: Mapping[int, ProgressCallback] | None = None,
        check_cancelled: CancelCheck | None = None,
    ) -> Iterator[Generation]:
        """Continue many prompts, in order; see `generate`. Each is continued as if it were alone.

        on_text: by the position of a prompt, a callback for the part of its text that is final; these prompts are
        continued one by one.  check_cancelled: called before each step; if it raises, all prompts end.
        Raises TranslationError for a prompt that fills the context, before it returns any of the same thousand.
        """
        if isinstance(prompts, str):
            raise TypeError("generate_all: found one string, expected many; use generate")
        chosen, first = self.choose(settings), 0
        for part in windows(((prompt, 0) for prompt in prompts), lines=_AT_ONCE):
            watched = {number - first: each for number, each in (on_text or {}).items() if number >= first}
            others = [prompt for number, prompt in enumerate(part) if number not in watched]
            generations = iter(self._generate(others, chosen, check_cancelled))
            for number, prompt in enumerate(part):
                callback = watched.get(number)
                if callback is None:
                    yield next(generations)
                else:
                    yield self._report(self.stream(prompt, settings=chosen, check_cancelled=check_cancelled), callback)
            first += len(part)

    def generate_lines(self, lines: Sequence[Line], settings: DecodingSettings) -> list[Generation]:
        """Continue the texts of lines, in order. Raises LineError for one that cannot be continued."""
        for line in lines:
            try:
                self._encode(line.text)
            except TranslationError as error:
                raise LineError(line, str(error)) from None
        try:
            return self._generate([line.text for line in lines], self.choose(settings))
        except TranslationError as error:  # one of them ends the search of its batch
            if len(lines) == 1:
                raise LineError(lines[0], str(error)) from None
            return [generation for line in lines for generation in self.generate_lines([line], settings)]

    def _report(self, steps: Steps[str, None, Generation], callback: ProgressCallback) -> Generation:
        """Call back with the text so far after each part of a stream; return its generation."""
        text = ""
        while True:
            try:
                text += next(steps)
            except StopIteration as stop:
                generation: Generation = stop.value
                return generation
            callback(text)

    def stream(
        self, prompt: str = "", *, settings: DecodingSettings | None = None, check_cancelled: CancelCheck | None = None
    ) -> Steps[str, None, Generation]:
        """Yield the text after a prompt as it is generated, in parts; return the generation (`yield from`).

        Each part is final, and together they are the text of the generation. Greedy search and one sample yield every
        token at once; of several texts only what they have in common is final before the end.
        check_cancelled: called before each step.
        """
        chosen, ids = self.choose(settings), self._encode(prompt)
        begin, sent = len(self.tokenizer.decode(ids)), 0
        steps = self._steps([ids], chosen)
        while True:
            if check_cancelled is not None:
                check_cancelled()
            try:
                certain = next(steps)
            except StopIteration as stop:
                generation = self._generation(prompt, ids, stop.value, chosen)
                break
            text = _settled(self.tokenizer.beginning(certain)[begin:], chosen.stop_strings)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)
        if len(generation.text) > sent:
            yield generation.text[sent:]
        return generation

    def check(self, settings: DecodingSettings) -> None:
        """Raise SettingsError if settings do not fit a language model."""
        super().check(settings)
        if settings.utility not in ("none", *MEASURES):
            raise SettingsError(f"decoding.utility: found '{settings.utility}'{nearest(settings.utility, MEASURES)}")
        strategy_from(settings)
        check_rules(self.tokenizer, settings)

    def score(self, text: str | TextHypothesis, *, prompt: str = "", stride: int = 0) -> TargetScore:
        """The log-probability of a text and EOS after a prompt, in nats (forced decoding).

        A text is tokenized again, apart from the prompt; a hypothesis keeps its own tokens, which have EOS only
        if it ended. Texts longer than `context` are read in windows that move by `stride` tokens; 0: half the context.
        """
        if not isinstance(text, str | TextHypothesis) or not isinstance(prompt, str):
            raise TypeError(f"score: found {type(text).__name__} and {type(prompt).__name__}, expected texts")
        before = self.tokenizer.encode(prompt)
        ids = [*self.tokenizer.encode(text), self.tokenizer.specials.eos] if isinstance(text, str) else list(text.ids)
        values = self._log_probs([[*before, *ids]], self.choose_stride(stride))[0][len(before) :]
        return self._target_score(ids, values)

    def score_all(self, texts: Iterable[str], *, stride: int = 0) -> Iterator[TargetScore]:
        """One score a text, in order; see `score`."""
        for part in windows(((text, 0) for text in texts), lines=_AT_ONCE):
            rows = [[*ids, self.tokenizer.specials.eos] for ids in self.tokenizer.encode_all(part)]
            yield from map(self._target_score, rows, self._log_probs(rows, self.choose_stride(stride)))

    def _target_score(self, ids: Sequence[int], values: Sequence[float]) -> TargetScore:
        tokens = tuple(self.tokenizer.tokens(ids))
        return TargetScore(log_prob=sum(values), tokens=tokens, token_log_probs=tuple(values))

    def perplexity(self, texts: Iterable[str], *, stride: int = 0) -> Perplexity:
        """How well the model predicts texts, each with its EOS; see `score` for `stride`.

        Raises TranslationError if no text has a token.
        """
        if isinstance(texts, str):
            raise TypeError("perplexity: found one string, expected many; put it into a list")
        stride = self.choose_stride(stride)
        nats, counts = 0.0, Counter[str]()
        unknown = -1 if self.tokenizer.specials.unk is None else self.tokenizer.specials.unk
        rest = iter(texts)
        while part := list(islice(rest, _AT_ONCE)):
            encoded = zip(part, self.tokenizer.encode_all(part), strict=True)
            filled = [(text, [*ids, self.tokenizer.specials.eos]) for text, ids in encoded if ids]
            nats -= sum(map(sum, self._log_probs([labels for _, labels in filled], stride)))
            counts.update(documents=len(filled), empty=len(part) - len(filled))
            for text, labels in filled:
                counts.update(tokens=len(labels), unknown=labels.count(unknown))
                counts.update(words=len(text.split()), characters=len(text), bytes=len(text.encode()))
        if not counts["documents"]:
            raise TranslationError(f"perplexity: found no text among {counts['empty']:,}, expected at least one")
        return Perplexity(nats=nats, context=self.context, stride=stride, **counts)

    def choose_stride(self, stride: int) -> int:
        """The stride, or half the context for 0. Raises SettingsError if it is above the context."""
        if not 0 <= stride <= self.context:
            raise SettingsError(f"stride: found {stride}, expected at most the context of {self.context} tokens")
        return stride or max(1, self.context // 2)

    def start(self, count: int) -> Any:
        """Return the state of `count` rows before their first token; `Translator.fuse_with` calls it."""
        source = np.full((count, 1), self.tokenizer.specials.eos)
        if isinstance(self._engine, Engine):
            return self._engine.start(source, source >= 0)
        tensor = torch.from_numpy(source).to(self.checkpoint.device)
        return self._stepper.start(tensor, torch.ones_like(tensor, dtype=torch.bool))

    def step(self, prefix: Tensor, state: Any) -> tuple[NextToken, Any]:
        """Return the distribution of the token after prefix [N, 1 + t], which begins with bos, and the new state."""
        return self._stepper.step(prefix, state)

    @property
    def _stepper(self) -> Stepper:
        return self._engine or self.checkpoint.model

    def _log_probs(self, rows: list[list[int]], stride: int) -> list[list[float]]:
        most = self.config.decoding.max_tokens
        return label_log_probs(
            EnsembleMembers.from_checkpoint(self.checkpoint, self._engine), rows, self.context, stride, most
        )

    def _encode(self, prompt: str) -> list[int]:
        """The ids of a prompt. Raises TranslationError if they leave no room in the context."""
        if not isinstance(prompt, str):
            raise TypeError(
                f"generate: found {type(prompt).__name__}, expected a prompt (str); generate_all takes many"
            )
        ids = self.tokenizer.encode(prompt)
        if len(ids) >= self.context:
            raise TranslationError(
                f"the prompt has {len(ids):,} tokens, expected at most {self.context - 1:,}: "
                f"the model reads {self.context:,} with BOS"
            )
        return ids

    def _generate(
        self, prompts: Sequence[str], settings: DecodingSettings, check_cancelled: CancelCheck | None = None
    ) -> list[Generation]:
        encoded = [self._encode(prompt) for prompt in prompts]
        done: dict[int, Generation] = {}
        order = sorted(range(len(prompts)), key=lambda number: len(encoded[number]))
        batch_size = max(1, settings.max_tokens // (self.context * strategy_from(settings).width))
        for _, group in groupby(order, key=lambda number: len(encoded[number])):
            numbers = list(group)
            for place in range(0, len(numbers), batch_size):
                batch = numbers[place : place + batch_size]
                steps = self._steps([encoded[number] for number in batch], settings)
                try:
                    while True:
                        if check_cancelled is not None:
                            check_cancelled()
                        next(steps)
                except StopIteration as stop:
                    texts: list[_Text] = stop.value
                for index, number in enumerate(batch):
                    own = [text for text in texts if text.prompt == index]
                    done[number] = self._generation(prompts[number], encoded[number], own, settings)
        return [done[number] for number in range(len(prompts))]

    def _generation(
        self, prompt: str, ids: Sequence[int], texts: Sequence[_Text], settings: DecodingSettings
    ) -> Generation:
        """The generation of a prompt from the texts found for it."""
        begin = len(self.tokenizer.decode(ids))
        penalty = strategy_from(settings).length_penalty
        hypotheses = []
        for text in texts:
            own, log_probs = text.labels[len(ids) :], text.log_probs
            score = text.total / penalty.divisor(float(max(1, len(own))))  # that of the search, which streams rely on
            whole = self.tokenizer.decode(text.labels)[begin:]
            written = _before(whole, settings.stop_strings)
            if stopped := written != whole and text.ended:  # without the EOS that ended the search
                own, log_probs = own[:-1], log_probs[:-1]
            hypotheses.append(
                TextHypothesis(
                    text=written,
                    tokens=tuple(self.tokenizer.tokens(own)),
                    ids=tuple(own),
                    log_prob=sum(log_probs) if stopped else text.log_prob,
                    token_log_probs=log_probs,
                    score=score,
                    finished_by="stop" if written != whole else "eos" if text.ended else "length",
                )
            )
        hypotheses.sort(key=lambda each: -each.score)
        if settings.utility != "none" and len(hypotheses) > 1:
            hypotheses = minimum_bayes_risk(hypotheses, settings.utility, settings.nbest)
        best = hypotheses[0]
        warnings: tuple[str, ...] = ()
        if unknown := ids.count(self.tokenizer.specials.unk):
            warnings = (f"unknown: {unknown:,} of the {len(ids):,} tokens of the prompt are not in the vocabulary",)
        if best.finished_by == "length" and len(best.ids) < (settings.max_length or math.inf):
            warnings += (
                f"context_full: the prompt of {len(ids):,} tokens and {len(best.ids):,} after it fill the context of "
                f"{self.context:,}; max_length above that continues a text of strategy 'sampling' or 'greedy'",
            )
        return Generation(
            prompt=prompt, text=best.text, hypotheses=tuple(hypotheses), prompt_tokens=len(ids), warnings=warnings
        )

    def _steps(self, prompts: list[list[int]], settings: DecodingSettings) -> Steps[list[int], None, list[_Text]]:
        """Take the decoding steps for prompts of equal length; return the texts found, best first for each prompt.

        Yields after each step the ids, with the prompt, that the text of the only prompt is certain to begin with.
        """
        texts = [_Text(prompt=number, labels=list(ids)) for number, ids in enumerate(prompts)]
        if settings.utility != "none":  # the best `nbest` of all texts
            settings = settings.model_copy(update={"nbest": strategy_from(settings).width})
        size = len(prompts[0])
        room = self.context - size
        limit = settings.max_length or room
        slides = limit > room and settings.strategy in _SLIDING
        reported = len(texts) == 1 and not (slides and strategy_from(settings).width > 1)
        hypotheses = yield from self._window(texts, 0, size, min(limit, room), settings, reported=reported)
        texts = [text.with_part(each) for text, own in zip(texts, hypotheses, strict=True) for each in own]
        begin, stride = 0, self.choose_stride(0)
        single = settings.model_copy(update={"samples": 1, "nbest": 1, "utility": "none"})
        while slides and (going := [number for number, text in enumerate(texts) if not text.ended]):
            begin += stride
            count = min(stride, limit - (len(texts[going[0]].labels) - size))
            if count <= 0:
                break
            parts = yield from self._window(
                [texts[number] for number in going], begin, size, count, single, reported=reported
            )
            for number, (part,) in zip(going, parts, strict=True):
                texts[number] = texts[number].with_part(part)
        return texts

    def _window(
        self, texts: Sequence[_Text], begin: int, prompt: int, count: int, settings: DecodingSettings, *, reported: bool
    ) -> Steps[list[int], None, list[list[Hypothesis]]]:
        """Search for up to `count` tokens after each of some texts of equal length, which are read from `begin` on.

        prompt: the number of tokens of the prompts. Rules see all tokens after these.
        """
        specials = self.tokenizer.specials
        rows = [[text.labels[begin - 1] if begin else specials.bos, *text.labels[begin:]] for text in texts]
        strategy = strategy_from(settings, sampling_keys([Piece(ids=tuple(text.labels)) for text in texts]))
        certain: list[int] = []
        stable = StablePrefix(
            lambda _, ids: certain.__setitem__(slice(None), ids),
            [0] if reported else [],
            reranked=settings.utility != "none",
        )
        best = BestHypotheses(strategy, len(texts))
        rules = build_rules(self.tokenizer, [False] * len(texts), settings)
        if specials.unk is not None:
            rules.append(ForbidTokens((specials.unk,)))
        if settings.stop_strings:
            rules.append(
                _EndAfterStrings(tokenizer=self.tokenizer, strings=settings.stop_strings, minimum=settings.min_length)
            )
        if len(texts[0].labels) > prompt:
            earlier = torch.tensor([text.labels[prompt:] for text in texts], device=self.checkpoint.device)
            rules = [AfterTokens(rule, earlier) for rule in rules]
        limits = np.full(len(texts), count)
        with inference_mode():
            started = self.start(len(texts))
        if isinstance(self._engine, Engine):
            begun = self._engine.complete_search(
                started, prompts=np.array(rows), eos=specials.eos, strategy=strategy, limits=limits, rules=rules
            )
            if begun is not None:
                search, numbers = begun
                while search.live:
                    search.run(STEPS_PER_CALL)
                    certain = search.stable_prefix(numbers[0], every=settings.utility != "none") if reported else []
                    yield [*texts[0].labels, *certain]
                hypotheses = [search.hypotheses(number) for number in numbers]
                search.close()
                if (complete := [each for each in hypotheses if each is not None]) == hypotheses:
                    return complete
                started = self.start(len(texts))  # the decoding loop raises the error
        device = self.checkpoint.device
        with inference_mode():
            state = PromptedState(started, torch.tensor(rows, device=device))
        try:
            for beam in decode(
                PromptedStep(self.step),
                state,
                bos=specials.bos,
                eos=specials.eos,
                strategy=strategy,
                limits=torch.from_numpy(limits).to(device),
                rules=rules,
            ):
                best.add(beam)
                stable(beam)
                yield [*texts[0].labels, *certain]
        except SearchError as error:
            raise TranslationError(f"token {error.token} after the prompt: {error.reason}") from None
        return [best.hypotheses(number) for number in range(len(texts))]
