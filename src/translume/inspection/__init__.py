"""What the decoder believed, what decoding made of it, and where it came from: as plain values, drawn elsewhere."""

from translume.inspection.alternatives import Edited, Forced, WhyNot
from translume.inspection.beam_record import BeamRecord
from translume.inspection.class_values import ClassTrace
from translume.inspection.classes import trace_classification
from translume.inspection.comparison import compare_on_corpus
from translume.inspection.corpus import inspect_corpus
from translume.inspection.corpus_values import CorpusLens
from translume.inspection.recording import record_beam
from translume.inspection.tracing import trace
from translume.inspection.values import Trace
from translume.inspection.what_if import edit_source, force_token, why_not

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
    "inspect_corpus",
    "record_beam",
    "trace",
    "trace_classification",
    "why_not",
]
