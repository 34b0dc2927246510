"""The generator: a language model that continues prompts and scores texts."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from translume.checkpoint import LanguageModelCheckpoint, load_any
from translume.config import Config
from translume.errors import SettingsError, TranslationError
from translume.text import Tokenizer
from translume.translator.engines import ComputeOptions, set_threads
from translume.translator.perplexity import Perplexity, label_log_probs
from translume.translator.results import TargetScore, TextHypothesis

_AT_ONCE = 1024
"""Texts that `perplexity` scores in common batches."""


class Generator:
    """A language model. No call changes it, so threads may share it."""

    def __init__(self, checkpoint: LanguageModelCheckpoint) -> None:
        """checkpoint: its model is used in the mode, training or evaluation, that it is in."""
        self.checkpoint = checkpoint

    @classmethod
    def load(cls, folder: Path | str, options: ComputeOptions | None = None) -> "Generator":
        """The language model in a model folder. Raises ModelFolderError if the folder holds none."""
        options = options or ComputeOptions()
        set_threads(options.threads)
        if options.engine == "fast":
            raise SettingsError("engine: found 'fast', expected 'auto' or 'plain'; a language model has no engine")
        dtype = options.plain_dtype
        return cls(load_any(folder, device=options.device, dtype=dtype, expected=LanguageModelCheckpoint))

    def __repr__(self) -> str:
        model = self.config.model
        return (
            f"<Generator: {model.decoder_layers} layers, width {model.width}, "
            f"{model.head.kind} head over {len(self.tokenizer):,} tokens, context {self.context}>"
        )

    @property
    def config(self) -> Config:
        """The settings the model was trained with."""
        return self.checkpoint.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of documents."""
        return self.checkpoint.target_tokenizer

    @property
    def context(self) -> int:
        """The number of tokens that the model reads at most, the begin mark included: `data.block_length`."""
        return self.config.data.block_length

    def score(self, text: str | TextHypothesis, *, prompt: str = "", stride: int = 0) -> TargetScore:
        """The log-probability of a text and its end mark after a prompt, in nats (forced decoding).

        A text is tokenized anew, apart from the prompt; a hypothesis keeps its own tokens, which have an end mark only
        if it ended. Texts longer than `context` are read in windows that move by `stride` tokens; 0: half the context.
        """
        if not isinstance(text, str | TextHypothesis) or not isinstance(prompt, str):
            raise TypeError(f"score: found {type(text).__name__} and {type(prompt).__name__}, expected texts")
        before = self.tokenizer.encode(prompt)
        ids = [*self.tokenizer.encode(text), self.tokenizer.specials.eos] if isinstance(text, str) else list(text.ids)
        values = self._log_probs([[*before, *ids]], self.choose_stride(stride))[0][len(before) :]
        return TargetScore(
            log_prob=sum(values), tokens=tuple(self.tokenizer.tokens(ids)), token_log_probs=tuple(values)
        )

    def perplexity(self, texts: Iterable[str], *, stride: int = 0) -> Perplexity:
        """How well the model predicts texts, each with its end mark; see `score` for `stride`.

        Raises TranslationError if no text has a token.
        """
        if isinstance(texts, str):
            raise TypeError("perplexity: found one text, expected many; put it into a list")
        stride = self.choose_stride(stride)
        nats, sizes, documents, empty = 0.0, [0, 0, 0, 0], 0, 0
        rest = iter(texts)
        while part := list(islice(rest, _AT_ONCE)):
            encoded = zip(part, self.tokenizer.encode_all(part), strict=True)
            filled = [(text, [*ids, self.tokenizer.specials.eos]) for text, ids in encoded if ids]
            empty, documents = empty + len(part) - len(filled), documents + len(filled)
            nats -= sum(map(sum, self._log_probs([labels for _, labels in filled], stride)))
            for text, labels in filled:
                found = (len(labels), len(text.split()), len(text), len(text.encode()))
                sizes = [old + new for old, new in zip(sizes, found, strict=True)]
        if not documents:
            raise TranslationError(f"perplexity: found no text among {empty:,}, expected at least one")
        tokens, words, characters, size = sizes
        return Perplexity(
            nats=nats,
            documents=documents,
            empty=empty,
            tokens=tokens,
            words=words,
            characters=characters,
            bytes=size,
            context=self.context,
            stride=stride,
        )

    def choose_stride(self, stride: int) -> int:
        """The stride, or half the context for 0. Raises SettingsError if it is above the context."""
        if not 0 <= stride <= self.context:
            raise SettingsError(f"stride: found {stride}, expected at most the context of {self.context} tokens")
        return stride or max(1, self.context // 2)

    def _log_probs(self, rows: list[list[int]], stride: int) -> list[list[float]]:
        most = self.config.decoding.max_tokens
        return label_log_probs(self.checkpoint, rows, self.context, stride, most)
