"""Compare imported checkpoints of other toolkits with what the toolkits themselves computed.

    python benchmarks/toolkits.py FOLDER …

FOLDER: holds a checkpoint, as a toolkit saved it, and a reference.json that was made with the toolkit: `toolkit`,
`sources` and `targets` (texts), `log_probs` (of each target's tokens, EOS last, teacher-forced), `search` ([decoding]
settings), `beam` and `greedy` (texts of the toolkit's own searches, or one of them). For Keras, also `checkpoint` and
`vocabularies`, names of its files. Prints the largest |Δ log p| of a token, and how many texts are equal.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import translume
from translume.config import DecodingSettings


def compare(folder: Path) -> dict[str, Any]:
    """Import the checkpoint in a folder and return how far it is from its reference."""
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as around:
        source, vocabularies = folder / reference.get("checkpoint", ""), reference.get("vocabularies", ())
        given = [folder / each for each in vocabularies]
        notes = translume.import_model(source, Path(around, "model"), vocabularies=given).notes
        translator = translume.load(Path(around, "model"), device="cpu", dtype="fp32", threads=1)
        scores = [translator.score(*pair) for pair in zip(reference["sources"], reference["targets"], strict=True)]
        beam = DecodingSettings(**reference["search"], split="never", letterless="translate")
        greedy = beam.model_copy(update={"strategy": "greedy"})
        found = {
            name: [each.text for each in translator.translate_all(reference["sources"], settings=settings)]
            for name, settings in {"beam": beam, "greedy": greedy}.items()
            if name in reference
        }
    ours = [list(score.token_log_probs) for score in scores]
    lengths = sum(len(row) != len(theirs) for row, theirs in zip(ours, reference["log_probs"], strict=True))
    pairs = [pair for rows in zip(ours, reference["log_probs"], strict=True) for pair in zip(*rows, strict=False)]
    return {
        "folder": folder.name,
        "toolkit": reference["toolkit"],
        "lines": len(ours),
        "tokens": len(pairs),
        "lines of another length": lengths,
        "difference": max(abs(one - other) for one, other in pairs),
        **{name: sum(map(str.__eq__, texts, reference[name])) for name, texts in found.items()},
        "notes": notes,
    }


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for folder in given.folder:
        result = compare(folder)
        if given.json:
            print(json.dumps(result))
            continue
        print(
            f"{result['folder']} ({result['toolkit']}): {result['tokens']} tokens of {result['lines']} lines differ by "
            f"at most {result['difference']:.2g} nats; equal texts: {result.get('beam', 'no')} beam, "
            f"{result.get('greedy', 'no')} greedy; "
            f"{result['lines of another length']} lines have another number of tokens"
        )


if __name__ == "__main__":
    main()
