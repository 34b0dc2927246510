"""Small files of weights as Keras saves them, whose numbers are the same everywhere.

Keras loads them, too: `RECORDED` in test_keras.py has the log-probabilities that it computed.
"""

import json
import zipfile
from pathlib import Path

import numpy as np
from tests.interchange.toolkits.files import numbers

WIDTH, HEADS, SIZE, INNER, ROWS, POSITIONS = 6, 2, 5, {"encoder": 7, "decoder": 11}, (13, 17), (17, 19)
"""SIZE: of a head; two heads are wider than WIDTH, as in the tutorials.  ROWS: one more than there are tokens."""
WORDS = {
    "source": ["", "[UNK]", "a", "man", "rides", "bike", "im", "end", "élan", "Élan", "dog", "x"],
    "target": ["", "[UNK]", "[start]", "[end]", *("un", "homme", "fait", "du", "vélo", "chien"), *"bcdefg"],
}
PIECES = {
    "source": ["[PAD]", "[UNK]", "[START]", "[END]", "a", "man", "ride", "##s", "bike", "dog", ".", "x"],
    "target": ["[PAD]", "[UNK]", "[START]", "[END]", *("un", "homme", "fait", "du", "velo", "##s", "chien"), *"bcdef"],
}
SOURCE, TARGET = "A man rides a BIKE, man.", "un homme fait chien vélo"


def dense(name: str, kernel: tuple[int, ...], bias: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {
        f"{name}/vars/{place}": numbers(f"{name}{place}", *shape).numpy() for place, shape in enumerate((kernel, bias))
    }


def norm(name: str) -> dict[str, np.ndarray]:
    values = dense(name, (WIDTH,), (WIDTH,))
    return values | {f"{name}/vars/0": values[f"{name}/vars/0"] + 1}


def attention(name: str) -> dict[str, np.ndarray]:
    values = dense(f"{name}/output_dense", (HEADS, SIZE, WIDTH), (WIDTH,))
    for part in ("query", "key", "value"):
        values |= dense(f"{name}/{part}_dense", (WIDTH, HEADS, SIZE), (HEADS, SIZE))
    return values


def feed_forward(name: str, side: str) -> dict[str, np.ndarray]:
    inner, outer = (INNER[side],), (WIDTH,)
    return dense(f"{name}/layers/dense", outer + inner, inner) | dense(f"{name}/layers/dense_1", inner + outer, outer)


def table(name: str, rows: int) -> dict[str, np.ndarray]:
    return {f"{name}/vars/0": numbers(name, rows, WIDTH).numpy()}


def keras_io() -> dict[str, np.ndarray]:
    """Return the variables of the tutorial of keras.io, by path."""
    values = dense("layers/dense", (WIDTH, ROWS[1]), (ROWS[1],))
    for number, side in enumerate(("encoder", "decoder")):
        at = f"layers/positional_embedding{'_1' * number}"
        values |= table(f"{at}/token_embeddings", ROWS[number]) | table(f"{at}/position_embeddings", POSITIONS[number])
        layer = f"layers/transformer_{side}"
        for name in (["attention"], ["attention_1", "attention_2"])[number]:
            values |= attention(f"{layer}/{name}")
        values |= feed_forward(f"{layer}/dense_proj", side)
        for place in range(2 + number):
            values |= norm(f"{layer}/layernorm_{place + 1}")
    return values


def tensorflow() -> dict[str, np.ndarray]:
    """Return the variables of the tutorial of tensorflow.org, with two layers, by path."""
    values = dense("final_layer", (WIDTH, ROWS[1]), (ROWS[1],))
    own = {"encoder": ["self_attention"], "decoder": ["causal_self_attention", "cross_attention"]}
    for side, rows in zip(("encoder", "decoder"), ROWS, strict=True):
        values |= table(f"{side}/pos_embedding/embedding", rows)
        for number in range(2):
            layer = f"{side}/{side[:3]}_layers/{side}_layer{'_1' * number}"
            for name in own[side]:
                values |= attention(f"{layer}/{name}/mha") | norm(f"{layer}/{name}/layernorm")
            values |= feed_forward(f"{layer}/ffn/seq", side) | norm(f"{layer}/ffn/layer_norm")
    return values


def keras_2() -> dict[str, np.ndarray]:
    """Return the same as Keras 2 names them."""
    renamed = {name.replace("final_layer", "dense"): value for name, value in tensorflow().items()}
    for part in ("query", "key", "value", "output"):
        renamed = {name.replace(f"/{part}_dense", f"/_{part}_dense"): value for name, value in renamed.items()}
    return {f"layers/{name}": value for name, value in renamed.items()}


def save(path: Path, values: dict[str, np.ndarray]) -> Path:
    """Write variables, and what a training adds, to a .weights.h5 or a .keras."""
    import h5py

    inner = path if path.suffix == ".h5" else path.with_suffix(".inner")
    with h5py.File(inner, "w") as file:
        for name, value in values.items():
            file[name] = value
        file["optimizer/vars/0"] = np.zeros((), np.float32)
        file["layers/dropout/seed_generator/vars/0"] = np.zeros(2, np.uint32)
    if inner != path:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", "{}")
            archive.write(inner, "model.weights.h5")
    return path


def vocabularies(folder: Path, tokens: dict[str, list[str]]) -> list[Path]:
    """Write the source's as lines and the target's in JSON."""
    (folder / "source.txt").write_text("\n".join(tokens["source"]) + "\n", encoding="utf-8")
    (folder / "target.json").write_text(json.dumps(tokens["target"]), encoding="utf-8")
    return [folder / "source.txt", folder / "target.json"]
