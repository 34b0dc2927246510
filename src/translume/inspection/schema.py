"""The published JSON schemas of inspection results: `docs/trace.schema.json` and `docs/corpus.schema.json`."""

import json

from translume.inspection.corpus import CorpusLens
from translume.inspection.json_values import schema_of, schema_of_any
from translume.inspection.search_record import BeamRecord
from translume.inspection.values import ClassTrace, Trace
from translume.inspection.what_if import Edited, Forced, WhyNot

DOCUMENTS = (Trace, BeamRecord, Forced, WhyNot, Edited, ClassTrace)
"""The types in `docs/trace.schema.json`; the field `schema` of each names its type and version."""


def schema_text() -> str:
    """Return the schema of all `DOCUMENTS` as JSON text."""
    schema = schema_of_any(DOCUMENTS, "Results of Translume's inspection")
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"


def corpus_schema_text() -> str:
    """Return the schema of a corpus lens as JSON text."""
    schema = {"title": "Results of Translume's corpus lens", **schema_of(CorpusLens)}
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"
