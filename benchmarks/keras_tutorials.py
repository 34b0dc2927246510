"""Train a model of a Keras tutorial for a minute, save it with Keras, and record what Keras computes.

    KERAS_BACKEND=torch python benchmarks/keras_tutorials.py keras.io OUT [--seconds 40] [--layers 1]
    python benchmarks/toolkits.py OUT

The first command needs keras 3, tokenizers and Tatoeba in TRANSLUME_DATA; the second needs Translume. OUT gets the
weights, the vocabularies and the reference.json of `toolkits.py`: log-probabilities of 200 targets and the texts of a
greedy search, which Keras computes of whole targets. The other tutorial is tensorflow.org.
"""

import argparse
import gzip
import json
import os
import re
import string
import time
from collections import Counter
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops

TOKENS, LONGEST, TRAINED, LIMIT = 1000, 20, 12_000, 40
"""LONGEST: number of positions in keras.io's tutorial.  LIMIT: of the other's targets."""
DATA = Path(os.environ.get("TRANSLUME_DATA", "data"), "tatoeba_en_fr")


class TransformerEncoder(layers.Layer):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(heads, width)
        self.dense_proj = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(width)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.supports_masking = True

    def call(self, x, mask=None):
        x = self.layernorm_1(x + self.attention(x, x, attention_mask=mask[:, None]))
        return self.layernorm_2(x + self.dense_proj(x))

    def get_config(self):
        return {}


class TransformerDecoder(layers.Layer):
    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention_1 = layers.MultiHeadAttention(heads, width)
        self.attention_2 = layers.MultiHeadAttention(heads, width)
        self.dense_proj = keras.Sequential([layers.Dense(inner, activation="relu"), layers.Dense(width)])
        self.layernorm_1, self.layernorm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.layernorm_3 = layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        (x, memory), (own, others) = inputs, mask
        x = self.layernorm_1(x + self.attention_1(x, x, query_mask=own, use_causal_mask=True))
        x = self.layernorm_2(x + self.attention_2(x, memory, memory, query_mask=own, key_mask=others))
        return self.layernorm_3(x + self.dense_proj(x))

    def get_config(self):
        return {}


class PositionalEmbedding(layers.Layer):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.token_embeddings, self.position_embeddings = (
            layers.Embedding(rows, width),
            layers.Embedding(LONGEST, width),
        )

    def call(self, ids):
        return self.token_embeddings(ids) + self.position_embeddings(ops.arange(ops.shape(ids)[-1]))

    def compute_mask(self, ids, mask=None):
        return ops.not_equal(ids, 0)

    def get_config(self):
        return {}


def keras_io(rows: tuple[int, int], width: int, heads: int, inner: int, count: int) -> keras.Model:
    """Return a model of two inputs, the ids of source and target, whose output are probabilities."""
    source, target = (keras.Input((None,), dtype="int64") for _ in rows)
    memory, x = PositionalEmbedding(rows[0], width)(source), PositionalEmbedding(rows[1], width)(target)
    for _ in range(count):
        memory = TransformerEncoder(width, inner, heads)(memory)
    for _ in range(count):
        x = TransformerDecoder(width, inner, heads)([x, memory])
    return keras.Model([source, target], layers.Dense(rows[1], activation="softmax")(layers.Dropout(0.5)(x)))


class Sinusoids(layers.Layer):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.embedding, self.factor = layers.Embedding(rows, width, mask_zero=True), width**0.5
        angles = np.arange(2048)[:, None] / 10_000 ** (np.arange(width / 2) / (width / 2))
        self.angles = np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)

    def call(self, ids):
        return self.embedding(ids) * self.factor + ops.convert_to_tensor(self.angles)[: ops.shape(ids)[1]]


class Attention(layers.Layer):
    """The attention of the other tutorial, with its norm."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.mha, self.layernorm = layers.MultiHeadAttention(heads, width, dropout=0.1), layers.LayerNormalization()
        self.causal = causal

    def call(self, x, read):
        return self.layernorm(x + self.mha(query=x, value=read, key=read, use_causal_mask=self.causal))


class FeedForward(layers.Layer):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        hidden = layers.Dense(inner, activation="relu")
        self.seq = keras.Sequential([hidden, layers.Dense(width), layers.Dropout(0.1)])
        self.layer_norm = layers.LayerNormalization()

    def call(self, x):
        return self.layer_norm(x + self.seq(x))


class EncoderLayer(layers.Layer):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attention, self.ffn = Attention(width, heads), FeedForward(width, inner)

    def call(self, x):
        return self.ffn(self.self_attention(x, x))


class DecoderLayer(layers.Layer):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.causal_self_attention, self.cross_attention = Attention(width, heads, causal=True), Attention(width, heads)
        self.ffn = FeedForward(width, inner)

    def call(self, x, memory):
        return self.ffn(self.cross_attention(self.causal_self_attention(x, x), memory))


class Encoder(layers.Layer):
    def __init__(self, rows: int, width: int, heads: int, inner: int, count: int) -> None:
        super().__init__()
        self.pos_embedding, self.dropout = Sinusoids(rows, width), layers.Dropout(0.1)
        self.enc_layers = [EncoderLayer(width, heads, inner) for _ in range(count)]

    def call(self, ids):
        x = self.dropout(self.pos_embedding(ids))
        for layer in self.enc_layers:
            x = layer(x)
        return x


class Decoder(layers.Layer):
    def __init__(self, rows: int, width: int, heads: int, inner: int, count: int) -> None:
        super().__init__()
        self.pos_embedding, self.dropout = Sinusoids(rows, width), layers.Dropout(0.1)
        self.dec_layers = [DecoderLayer(width, heads, inner) for _ in range(count)]

    def call(self, ids, memory):
        x = self.dropout(self.pos_embedding(ids))
        for layer in self.dec_layers:
            x = layer(x, memory)
        return x


class Transformer(keras.Model):
    def __init__(self, rows: tuple[int, int], *sizes: int) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(rows[0], *sizes), Decoder(rows[1], *sizes)
        self.final_layer = layers.Dense(rows[1], activation="softmax")

    def call(self, inputs):
        source, target = inputs
        return self.final_layer(self.decoder(target, self.encoder(source)))


def words(text: str, kept: str = "", stripped: str = "") -> list[str]:
    """Return the words of TextVectorization: ASCII in lower case, without punctuation."""
    lower = "".join(each.lower() if each.isascii() else each for each in text)
    marks = [each for each in string.punctuation + stripped if each not in kept]
    return re.findall(r"[^ \t\n\v\f\r]+", lower.translate(str.maketrans("", "", "".join(marks))))


class Words:
    """The vocabulary of TextVectorization, of at most TOKENS − 17 tokens, so that rows of no token are left."""

    def __init__(self, path: Path, texts: list[str], *, target: bool) -> None:
        self._rules = ("[]", "¿") if target else ("", "")
        ends = ["[start]", "[end]"] if target else []
        counts = Counter(word for text in texts for word in words(text, *self._rules))
        self._tokens = ["", "[UNK]", *ends, *(word for word, _ in counts.most_common(TOKENS - 19 - len(ends)))]
        self._ids = {token: id_ for id_, token in enumerate(self._tokens)}
        path.write_text("\n".join(self._tokens) + "\n", encoding="utf-8")
        self.size = TOKENS

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(word, 1) for word in words(text, *self._rules)][: LONGEST - 1]

    def decode(self, ids: list[int]) -> str:
        return " ".join("\ufffd" if id_ == 1 else self._tokens[id_] for id_ in ids)


class Pieces:
    """Word pieces of BERT."""

    def __init__(self, path: Path, texts: list[str], *, target: bool) -> None:
        from tokenizers import BertWordPieceTokenizer

        self._library = BertWordPieceTokenizer(lowercase=True, strip_accents=True)
        special = ["[PAD]", "[UNK]", "[START]", "[END]"]
        self._library.train_from_iterator(texts, TOKENS, special_tokens=special, show_progress=False)
        self.size = self._library.get_vocab_size()
        tokens = [self._library.id_to_token(id_) for id_ in range(self.size)]
        path.write_text("\n".join(tokens) + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        return [*self._library.encode(text, add_special_tokens=False).ids[: LIMIT - 1]]

    def decode(self, ids: list[int]) -> str:
        tokens = ["\ufffd" if id_ == 1 else self._library.id_to_token(id_) for id_ in ids]
        return " ".join(tokens).replace(" ##", "")


def padded(rows: list[list[int]]) -> np.ndarray:
    return np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])


def read(name: str) -> list[str]:
    return gzip.decompress((DATA / name).read_bytes()).decode().splitlines()


class Stop(keras.callbacks.Callback):
    """Ends a training after some seconds of the processor."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.process_time() + seconds

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = time.process_time() > self._end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tutorial", choices=["keras.io", "tensorflow.org"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--lines", type=int, default=200)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    keras.utils.set_random_seed(1)
    flat = given.tutorial == "keras.io"
    pairs = [each for each in zip(read("train.en.gz"), read("train.fr.gz"), strict=True) if max(map(len, each)) < 35]
    pairs, names = pairs[:TRAINED], ["source.txt", "target.txt"]
    sides = [
        (Words if flat else Pieces)(given.out / name, [pair[side] for pair in pairs], target=side == 1)
        for side, name in enumerate(names)
    ]

    def ids(pair: tuple[str, str]) -> tuple[list[int], list[int]]:
        source, target = (side.encode(text) for side, text in zip(sides, pair, strict=True))
        return (source if flat else [2, *source, 3]), [2, *target, 3]

    sizes = (48, 2, 96, given.layers)
    rows = (sides[0].size, sides[1].size)
    model = keras_io(rows, *sizes) if flat else Transformer(rows, *sizes)
    encoded = [ids(pair) for pair in pairs]
    source, target = (padded([pair[side] for pair in encoded]) for side in (0, 1))
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    model.compile(keras.optimizers.Adam(3e-3), loss=loss)
    history = model.fit(
        [source, target[:, :-1]], target[:, 1:], batch_size=64, epochs=99, verbose=0, callbacks=[Stop(given.seconds)]
    )
    model.save_weights(given.out / "model.weights.h5")
    if flat:
        model.save(given.out / "model.keras")
    tests = [*zip(read("test.en.gz"), read("test.fr.gz"), strict=True)][: given.lines]

    def log_probs(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.log(np.asarray(ops.convert_to_numpy(model([source, target], training=False)), np.float64))

    scores, greedy = [], dict[int, list[int]]()
    by_length: dict[int, list[int]] = {}
    for line, (given_ids, wanted) in enumerate(map(ids, tests)):
        found = log_probs(np.array([given_ids]), np.array([wanted[:-1]]))[0]
        scores.append([float(row[id_]) for row, id_ in zip(found, wanted[1:], strict=True)])
        by_length.setdefault(len(given_ids), []).append(line)
    for lines in by_length.values():  # Keras 3 lets the layers of tensorflow.org read padding
        source = np.array([ids(tests[line])[0] for line in lines])
        targets = np.full((len(lines), 1), 2)
        for _ in range(LONGEST if flat else LIMIT):
            targets = np.hstack([targets, log_probs(source, targets)[:, -1].argmax(-1)[:, None]])
        greedy |= {line: row.tolist()[1:] for line, row in zip(lines, targets, strict=True)}
    texts = [sides[1].decode(row[: row.index(3)] if 3 in row else row) for _, row in sorted(greedy.items())]
    reference = {
        "toolkit": f"Keras {keras.__version__}", "sources": [pair[0] for pair in tests],
        "targets": [pair[1] for pair in tests], "log_probs": scores, "greedy": texts,
        "search": {"strategy": "greedy", "max_length": LONGEST if flat else LIMIT, "max_length_ratio": 99.0},
        "checkpoint": "model.weights.h5", "vocabularies": names,
    }  # fmt: skip
    (given.out / "reference.json").write_text(json.dumps(reference), encoding="utf-8")
    print(f"{given.out}: loss {history.history['loss'][-1]:.2f}, {len({*texts})} distinct texts, such as {texts[:3]}")


if __name__ == "__main__":
    main()
