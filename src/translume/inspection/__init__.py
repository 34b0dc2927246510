"""Inspection: predicted distributions, search records, attributions and what-if questions, as values and as pictures.

`pages` draws them as HTML, `terminal` as text, `figures` by matplotlib, which only that module imports.
"""

from translume.inspection.classification import trace_classification
from translume.inspection.comparison import compare_on_corpus
from translume.inspection.corpus import inspect_corpus
from translume.inspection.search_record import record_beam
from translume.inspection.tracing import trace
from translume.inspection.values import BeamRecord, ClassTrace, CorpusLens, Edited, Forced, Trace, WhyNot
from translume.inspection.what_if import edit_source, force_token, force_tokens, why_not

__all__ = [
    "BeamRecord",
    "ClassTrace",
    "CorpusLens",
    "Edited",
    "Forced",
    "Trace",
    "WhyNot",
    "compare_on_corpus",
    "edit_source",
    "force_token",
    "force_tokens",
    "inspect_corpus",
    "record_beam",
    "trace",
    "trace_classification",
    "why_not",
]
