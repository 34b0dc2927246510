"""Inspection: predicted distributions, search records, attributions and what-if questions, as values and as pictures.

`pages` draws them as HTML, `terminal` as text, `figures` by matplotlib, which only that module imports.
"""

from typing import TYPE_CHECKING

from translume.exports import export_late

if TYPE_CHECKING:
    from translume.inspection.classification import trace_classification as trace_classification
    from translume.inspection.comparison import compare_on_corpus as compare_on_corpus
    from translume.inspection.corpus import inspect_corpus as inspect_corpus
    from translume.inspection.search_record import record_beam as record_beam
    from translume.inspection.tracing import trace as trace
    from translume.inspection.values import BeamRecord as BeamRecord
    from translume.inspection.values import ClassTrace as ClassTrace
    from translume.inspection.values import CorpusLens as CorpusLens
    from translume.inspection.values import Edited as Edited
    from translume.inspection.values import Forced as Forced
    from translume.inspection.values import Trace as Trace
    from translume.inspection.values import WhyNot as WhyNot
    from translume.inspection.what_if import edit_source as edit_source
    from translume.inspection.what_if import force_token as force_token
    from translume.inspection.what_if import force_tokens as force_tokens
    from translume.inspection.what_if import why_not as why_not

export_late(__name__)
