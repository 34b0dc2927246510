"""Which model it is that is served, to the last weight: the digest of its folder's list of files."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from translume.serving.workers.loading import Load, state_of
from translume.serving.workers.models import Served, ServedClassifier

MANIFEST: Final = "manifest_sha256"
"""What clients are told it by, among a model's facts."""


def with_manifest(load: Load) -> Load:
    """What loads models so that clients are told the SHA-256 of manifest.json, which holds that of every file."""

    def loaded(name: str, folder: Path) -> Served | ServedClassifier:
        digest = state_of(folder)
        served = load(name, folder)
        return replace(served, facts={**served.facts, MANIFEST: digest})

    return loaded
