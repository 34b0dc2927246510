"""What the decoder believed, what decoding made of it, and where it came from: as plain values, drawn elsewhere."""

from translume.inspection.alternatives import Edited, Forced, WhyNot
from translume.inspection.beam_record import BeamRecord
from translume.inspection.recording import record_beam
from translume.inspection.tracing import trace
from translume.inspection.values import Trace
from translume.inspection.what_if import edit_source, force_token, why_not

__all__ = [
    "BeamRecord",
    "Edited",
    "Forced",
    "Trace",
    "WhyNot",
    "edit_source",
    "force_token",
    "record_beam",
    "trace",
    "why_not",
]
