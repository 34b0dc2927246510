"""The JSON schemas of all that an inspection gives: `docs/trace.schema.json` and `docs/corpus.schema.json`."""

import json

from translume.inspection.alternatives import Edited, Forced, WhyNot
from translume.inspection.beam_record import BeamRecord
from translume.inspection.class_values import ClassTrace
from translume.inspection.corpus_values import CorpusLens
from translume.inspection.plain import schema_of, schema_of_any
from translume.inspection.values import Trace

DOCUMENTS = (Trace, BeamRecord, Forced, WhyNot, Edited, ClassTrace)
"""What is written as JSON by itself; `schema` in each says which and in which version."""


def schema_text() -> str:
    """The schema as JSON text."""
    schema = schema_of_any(DOCUMENTS, "What Translume's inspection writes")
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"


def corpus_schema_text() -> str:
    """The schema of a corpus lens, as JSON text."""
    schema = {"title": "What Translume's corpus lens writes", **schema_of(CorpusLens)}
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"
