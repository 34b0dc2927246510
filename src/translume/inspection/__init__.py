"""Inspection: predicted distributions, search records, attributions and what-if questions, as dataclasses."""

from translume.inspection.classification import trace_classification
from translume.inspection.comparison import compare_on_corpus
from translume.inspection.corpus import CorpusLens, inspect_corpus
from translume.inspection.search_record import BeamRecord, record_beam
from translume.inspection.tracing import trace
from translume.inspection.values import ClassTrace, Trace
from translume.inspection.what_if import Edited, Forced, WhyNot, edit_source, force_token, force_tokens, why_not

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
