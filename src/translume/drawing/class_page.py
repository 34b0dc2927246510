"""The page of a classifier's answer."""

from translume.drawing.document import document
from translume.inspection import ClassTrace


def class_page(trace: ClassTrace) -> str:
    """The HTML of a classified text: its classes, and which tokens speak for and against each."""
    return document(
        "What the classifier believed", "class.html", scripts=("steps.js", "class.js"), data={"trace": trace.to_dict()}
    )
