"""The JSON schema of all that an inspection gives: what `docs/trace.schema.json` holds."""

import json

from translume.inspection.alternatives import Edited, Forced, WhyNot
from translume.inspection.beam_record import BeamRecord
from translume.inspection.plain import schema_of_any
from translume.inspection.values import Trace

DOCUMENTS = (Trace, BeamRecord, Forced, WhyNot, Edited)
"""What is written as JSON by itself; `schema` in each says which and in which version."""


def schema_text() -> str:
    """The schema as JSON text."""
    schema = schema_of_any(DOCUMENTS, "What Translume's inspection writes")
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"
