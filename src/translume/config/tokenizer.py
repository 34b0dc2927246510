"""[tokenizer]: how text is converted to token ids."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from translume.config.base import Settings


class TokenizerSettings(Settings):
    """[tokenizer]: trained on the training files unless `path` names an existing one."""

    table: ClassVar[str] = "tokenizer"

    kind: Literal["bpe", "unigram", "wordpiece", "character", "byte", "word", "sentencepiece", "library", "split"] = (
        "bpe"
    )
    """The kind of tokens; "bpe" suits most languages. "library" is any tokenizer.json of the
    library `tokenizers`, which `path` names; "sentencepiece" and "split" are for imported models only."""
    target_kind: Literal["", "bpe", "unigram", "wordpiece", "character", "byte", "word"] = ""
    """The kind of the target's tokens if it differs, such as "word" for phones separated by blanks."""
    size: int = Field(default=8000, ge=8, le=10_000_000)
    """Maximum size of the vocabulary, special tokens included ("byte" always has 256 and the special tokens)."""
    target_size: int = Field(default=0, ge=0, le=10_000_000)
    """Maximum size of the target's vocabulary; 0: `size`."""
    path: str = ""
    """An existing file of `translume tokenizer train`, a tokenizer.json of the library `tokenizers`, or the folder of a
    model that has one; empty trains one. The other settings of tokens are then those of the file."""
    target_path: str = ""
    """The same for the target when `shared` is false."""
    shared: bool = True
    """One vocabulary for both sides."""
    normalization: Literal["nfc", "nfd", "nfkc", "none"] = "nfc"
    """Unicode normalisation applied to every text. With "nfd", a source's letters and accents are characters of their
    own, and so are the consonants and vowels of a Korean syllable; targets stay "nfc"."""
    lowercase: bool = False
    """Lower-case every text."""
    whitespace: Literal["collapse", "keep"] = "collapse"
    """"collapse" replaces each run of white space by one space and strips both ends."""
    unknown: Literal["bytes", "token"] = "bytes"
    """Characters outside the vocabulary become their bytes (lossless) or one <unk> token."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of skipping a merge while training (BPE-dropout, Provilkov et al. 2020); only "bpe" has merges."""

    sample: int = Field(default=2_000_000, ge=1)
    """Maximum number of training pairs that a vocabulary is learned from: evenly spread over all of them, or with
    `data.streaming` the first ones of each file."""
    extend: int = Field(default=0, ge=0, le=1_000_000)
    """Maximum number of tokens that `train --from` adds to each vocabulary of the base model, learned from the training
    files; each begins with the mean weights of the tokens that it replaces. For "bpe", "word" and "character"."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if self.shared and self.target_path:
            raise ValueError("target_path has no effect while shared is true; expected shared = false, or path alone")
        for name in ("target_kind", "target_size"):
            if self.shared and getattr(self, name):
                raise ValueError(f"{name} has no effect while shared is true; expected shared = false")
        for kind in (self.kind, self.target_kind or self.kind):
            if self.dropout and kind != "bpe" and not self.path:
                raise ValueError(f"dropout {self.dropout} with kind '{kind}', expected 0; only kind 'bpe' has merges")
        return self

    def of_target(self) -> Self:
        """Return the settings with which the target's own tokenizer is learned."""
        own = {"kind": self.target_kind or self.kind, "size": self.target_size or self.size}
        form = "nfc" if self.normalization == "nfd" else self.normalization
        return self.model_copy(update={**own, "normalization": form, "target_kind": "", "target_size": 0})
