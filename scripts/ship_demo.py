"""Make the model that comes with Translume, `demo`, of the one that `translume demo` trained.

    translume demo --out models/demo && python scripts/ship_demo.py models/demo

writes src/translume/experiments/demo.model: weights in int8, no files for other programs, no local paths.
"""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from translume.checkpoint import Card, Manifest, commit, load_checkpoint, save_model
from translume.checkpoint.folder import DEMO
from translume.checkpoint.loading import WEIGHTS
from translume.evaluation import evaluate
from translume.experiments.demo import make_corpus
from translume.interchange.export import export
from translume.translator import Translator


def main() -> None:
    trained = load_checkpoint(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        plain, written = Path(folder) / "plain", Path(folder) / "demo"
        save_model(plain, replace(trained, model=trained.model, config=trained.config.without_folders()))
        certificate = export(plain, "translume", written, dtype="int8")
        sources, references = zip(*make_corpus("en", "zh").test, strict=True)
        scores = evaluate(Translator.load(written), sources, references)
        checkpoint = load_checkpoint(written)
        weights = (written / Manifest.read(written).files[WEIGHTS].file).read_bytes()
        notes = f"weights in int8 with a scale a row; {certificate}, from those in fp32"
        save_model(
            written,
            checkpoint,
            card=Card(
                parameters=checkpoint.parameters,
                data=f"40,000 pairs that `translume demo` generated; {notes}",
                scores=[f"{score} (on the demo's 1,000 test pairs)" for score in scores],
                licence="apache-2.0",
            ),
            files={WEIGHTS: weights},
        )
        commit(written, {}, remove=["source.json", "target.json"])
        shutil.rmtree(DEMO, ignore_errors=True)
        shutil.copytree(written, DEMO)
    print(f"{DEMO}: {sum(path.stat().st_size for path in DEMO.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
