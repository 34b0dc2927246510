"""[evaluation]: how translations are measured."""

from typing import ClassVar, Literal, Self

from translume.config.base import Names, Settings

TOKENIZERS = {
    **dict.fromkeys(("zh", "yue", "wuu", "lzh"), "zh"),
    **dict.fromkeys(("ja", "ko", "th", "lo", "km", "my", "bo", "dz"), "char"),
}
"""What parts sentences for BLEU, by language: those written without spaces, and Korean; of all others "13a"."""


def tokenizer_of(language: str) -> str:
    """sacreBLEU's tokenizer for a language's code, such as "zh" or "pt-BR"; "13a" where the language is not known."""
    return TOKENIZERS.get(language.lower().replace("_", "-").split("-")[0], "13a")


class EvaluationSettings(Settings):
    """[evaluation]: as sacreBLEU names things."""

    table: ClassVar[str] = "evaluation"

    metrics: Names = ("bleu", "chrf")
    """Any of "bleu", "chrf", "ter", "exact_match", "wer", "per"."""
    tokenize: Literal["auto", "none", "13a", "intl", "zh", "char", "ja-mecab", "ko-mecab"] = "auto"
    """sacreBLEU's tokenizer for BLEU; "auto" by the target language, "none" for text that is tokenized already."""
    lowercase: bool = False
    """Compare without case."""

    def of_language(self, language: str) -> Self:
        """A copy with a tokenizer in the place of "auto"."""
        return self.model_copy(update={"tokenize": tokenizer_of(language)}) if self.tokenize == "auto" else self
