"""Models in Marian's format, made of random arrays with the names and shapes that its decoder expects."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

WIDTH, INNER, SOURCE, TARGET = 14, 11, 29, 23
OPTIONS = {
    "type": "transformer", "dim-vocabs": [SOURCE, TARGET], "dim-emb": WIDTH, "transformer-heads": 2, "enc-depth": 2,
    "dec-depth": 2, "transformer-dim-ffn": INNER, "transformer-decoder-dim-ffn": 0, "transformer-ffn-depth": 2,
    "transformer-decoder-ffn-depth": 0, "transformer-ffn-activation": "swish", "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention", "dec-cell": "gru", "tied-embeddings": True,
    "tied-embeddings-all": False, "tied-embeddings-src": False, "output-omit-bias": False, "lemma-dim-emb": 0,
    "lemma-dependency": "", "input-types": [], "layer-normalization": False, "right-left": False, "skip": False,
    "transformer-no-projection": False, "transformer-no-bias": False, "transformer-no-affine": False,
    "transformer-tied-layers": [], "transformer-train-position-embeddings": False, "ulr": False,
    "transformer-rnn-projection": False, "transformer-pool": False, "transformer-attention-mask": "default",
    "transformer-alibi-shift": False, "transformer-alibi-trainable": False, "separator-symbol": "[eos]",
    "transformer-disable-position-embeddings": False, "transformer-guided-alignment-layer": "last",
    "bert-train-type-embeddings": True, "bert-type-vocab-size": 2, "factors-combine": "sum", "factors-dim-emb": 0,
    "transformer-aan-activation": "swish", "transformer-aan-depth": 2, "transformer-aan-nogate": False,
    "transformer-dim-aan": 2048, "dim-rnn": 1024, "enc-cell": "gru", "enc-cell-depth": 1, "enc-type": "bidirectional",
    "dec-cell-base-depth": 2, "dec-cell-high-depth": 1, "ulr-dim-emb": 0, "ulr-trainable-transformation": False,
    "version": "v1.12.42",
}  # fmt: skip
"""What `special:model.yml` holds in a model that Marian 1.12.42 trained."""
VARIANTS = {
    "post": {},
    "ssru": {
        "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "tied-embeddings-all": True,
        "tied-embeddings": False, "transformer-ffn-activation": "relu", "dim-vocabs": [TARGET, TARGET],
    },
    "pre": {
        "transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n",
        "transformer-ffn-activation": "gelu", "tied-embeddings": False, "output-omit-bias": True,
    },
    "pre-ssru": {
        "transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n",
        "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "tied-embeddings-src": True,
        "tied-embeddings": False, "dim-vocabs": [TARGET, TARGET],
    },
    "narrow": {"transformer-decoder-dim-ffn": 5, "transformer-train-position-embeddings": True},
}  # fmt: skip


def shapes_of(options: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """The arrays of a model: written down from models that Marian trained, not from our reader."""
    source, target = options["dim-vocabs"]
    found: dict[str, tuple[int, int]] = {}
    if options["tied-embeddings-all"] or options["tied-embeddings-src"]:
        found["Wemb"] = (source, WIDTH)
    else:
        found |= {"encoder_Wemb": (source, WIDTH), "decoder_Wemb": (target, WIDTH)}
    if not (options["tied-embeddings"] or options["tied-embeddings-all"]):
        found["decoder_ff_logit_out_Wt"] = (target, WIDTH)
    if not options["output-omit-bias"]:
        found["decoder_ff_logit_out_b"] = (1, target)
    before = options["transformer-preprocess"] == "n"
    end = "_pre" if before else ""

    def norm(name: str, suffix: str = end) -> None:
        found.update({f"{name}_ln_scale{suffix}": (1, WIDTH), f"{name}_ln_bias{suffix}": (1, WIDTH)})

    def linear(name: str, letter: str, shape: tuple[int, int]) -> None:
        found.update({f"{name}_W{letter}": shape, f"{name}_b{letter}": (1, shape[1])})

    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        inner = (options["transformer-decoder-dim-ffn"] if side == "decoder" else 0) or INNER
        for layer in range(1, depth + 1):
            name = f"{side}_l{layer}"
            if side == "decoder" and options["transformer-decoder-autoreg"] == "rnn":
                found |= {
                    f"{name}_rnn_W": (WIDTH, WIDTH),
                    f"{name}_rnn_Wf": (WIDTH, WIDTH),
                    f"{name}_rnn_bf": (1, WIDTH),
                }
                norm(f"{name}_rnn" if before else f"{name}_rnn_ffn")
                blocks = ["context"]
            else:
                blocks = ["self", "context"][: 2 if side == "decoder" else 1]
            for block in blocks:
                for letter in "qkvo":
                    linear(f"{name}_{block}", letter, (WIDTH, WIDTH))
                norm(f"{name}_{block}_Wo")
            linear(f"{name}_ffn", "1", (WIDTH, inner))
            linear(f"{name}_ffn", "2", (inner, WIDTH))
            norm(f"{name}_ffn_ffn")
        if before:
            norm(f"{side}_top", "")
    return found


def arrays_of(options: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Random arrays: the same on every machine and in every release of numpy, since recorded scores rest on them."""
    found = {}
    for number, (name, shape) in enumerate(sorted(shapes_of(options).items())):
        count = np.arange(shape[0] * shape[1], dtype=np.float64) + 1009 * number
        values = np.sin(count * 12.9898) * 43758.5453
        values = (values - np.floor(values) - 0.5) * 1.3  # uniform in ±0.65
        found[name] = (values.reshape(shape) + ("_ln_scale" in name)).astype(np.float32)
    return found


def write_npz(path: Path, variant: str = "post", arrays: Mapping[str, object] | None = None, **changes: object) -> Path:
    """Write a model as Marian saves it. arrays: instead of those of the options; None removes one."""
    options = {**OPTIONS, **VARIANTS[variant], **{name.replace("_", "-"): value for name, value in changes.items()}}
    text = yaml.safe_dump(options).encode() + b"\0"
    found = {**arrays_of(options), **(arrays or {}), "special:model.yml": np.frombuffer(text, np.int8)}
    np.savez(path, **{name: array for name, array in found.items() if array is not None})
    return path


def write_list(path: Path, size: int) -> Path:
    """Write a vocabulary as a list of pieces: </s>, <unk>, ▁w2, ▁w3, …"""
    pieces = ["</s>", "<unk>", *(f"▁w{number}" for number in range(2, size))]
    path.write_text("".join(f'"{piece}": {number}\n' for number, piece in enumerate(pieces)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def marian(opus) -> SimpleNamespace:
    """Functions that write models of Marian."""

    def write_spm(path: Path, lines: tuple[str, ...]) -> int:
        """Train a SentencePiece model with the special ids of Marian; return its number of pieces."""
        import sentencepiece

        path.write_bytes(
            opus.sentencepiece_of(lines, bos_id=-1, eos_id=0, unk_id=1, normalization_rule_name="identity")
        )
        return len(sentencepiece.SentencePieceProcessor(str(path)))

    return SimpleNamespace(
        write_npz=write_npz, write_list=write_list, write_spm=write_spm, options=OPTIONS, variants=VARIANTS,
        arrays_of=arrays_of, source=SOURCE, target=TARGET,
    )  # fmt: skip
