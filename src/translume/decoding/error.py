"""What stops a search."""

from translume.errors import TranslationError


class SearchError(TranslationError):
    """A sentence cannot be searched on.  sentence: its number, from 0.  token: which of its tokens, from 1.

    The text counts sentences from 1, within the batch that was given; who knows the line may say it instead.
    """

    def __init__(self, reason: str, *, sentence: int, token: int) -> None:
        super().__init__(f"sentence {sentence + 1}, token {token}: {reason}")
        self.reason, self.sentence, self.token = reason, sentence, token
