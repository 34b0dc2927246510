"""The page of a corpus lens; it works by mouse and keyboard."""

from translume.drawing.document import document
from translume.inspection.corpus_values import CorpusLens


def corpus_page(lens: CorpusLens, *, title: str = "") -> str:
    """The HTML of a lens. title: what it is of, such as a model and its files."""
    return document(
        "A corpus as the model sees it",
        "corpus.html",
        scripts=("steps.js", "corpus.js"),
        styles=("corpus.css",),
        data={"lens": lens.to_dict(), "title": title},
    )
