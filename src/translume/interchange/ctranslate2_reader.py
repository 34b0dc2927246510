"""Read a folder of CTranslate2 as a model of ours: settings, vocabularies and weights, without torch."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from translume import json_values
from translume.checkpoint import commit, model_files
from translume.checkpoint.arrays import SCALE
from translume.config import Config
from translume.config.model import GATED
from translume.engine.network import SINUSOIDS, sinusoids
from translume.errors import DataError, ModelFolderError, SettingsError, TranslumeError
from translume.interchange.ctranslate2_binary import BINARY, Array, Binary, read_binary
from translume.interchange.sentencepiece import read_sentencepiece
from translume.kernels.allocator import return_memory
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.imported import CODE, LibraryIds, scores_of
from translume.text.specials import BYTES
from translume.text.standard import SETTINGS

CONFIG, LIBRARY = "config.json", "tokenizer.json"
HEAD, EMBEDDING_NORM, RELATIVE = "decoder/projection/weight", "layernorm_embedding/gamma", "relative_attention_bias"
Read = Callable[[], Array]
"""Reads a weight, or the scales of one in int8."""
BEGIN = "<begin>"
"""Our BOS for a model whose targets begin with a vector of zeros; it has no token for it."""
IMPOSSIBLE = -100.0
"""The logit bias of that BOS."""
PADDING = ("<blank>", "<pad>")
SENTENCES = re.compile(r".*\.(spm|model)")
TAGS = re.compile(r"__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})|([a-z]{2}_[A-Z]{2})")
"""The tags of languages of M2M-100, NLLB-200 and mBART-50."""
T5_TAGS, SENTINELS = re.compile("<2([^<>]+)>"), re.compile("▁?<extra_id_[0-9]+>|<2[^<>]+>")
"""The tags of languages of MADLAD-400, and all pieces of a T5 that segment no text."""
RESERVED = re.compile(r"madeupword\d+|▁?<[^<>]+>")
"""Tokens that no text has, if the SentencePiece model lacks them."""
WITH_CONFIG = 6
"""The first version whose settings are in config.json."""
MAX_POSITIONS, LIMIT = 1024, 256
"""Our maximum length for models without a table of positions; CTranslate2's usual maximum of a target, with EOS."""
SEARCH = {"strategy": "beam", "beam": 2, "stop": "first", "length_penalty": 1.0, "max_length": LIMIT}
"""The search of CTranslate2 with its defaults."""
_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
"""The special tokens that a folder states, with CTranslate2's defaults."""
_LAYOUT, _REVISION = "TransformerSpec", 7
_ACTIVATIONS = {(0, False): "relu", (3, False): "gelu", (2, False): "swish", (2, True): "swiglu", (1, True): "geglu"}
"""By CTranslate2's number and whether feed-forward blocks are gated."""
_SETTINGS = (
    *("num_heads", "pre_norm", "activation", "embeddings_merge", "scale_embeddings", "scale_outputs", "queries_scale"),
    *("multi_query_attention", "alignment_layer", "alignment_heads", "start_from_zero_embedding", "head_dim"),
    *("num_heads_kv", "relative_attention_max_distance", "rotary_dim", "rotary_interleave", "rotary_base"),
    *("with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"),
    *("unk_token", "bos_token", "eos_token", "multiply_by_sqrt_depth", "max_position_embeddings"),
    *("original_max_position_embeddings", "rotary_scaling_factor", "alibi_use_positive_positions"),
)
"""The ends of the names of variables that are settings which are read here, or which change nothing."""
_ROTARY = (("rotary_dim", 0), ("rotary_interleave", 1), ("rotary_base", 10_000), ("rotary_scaling_factor", 1))
"""Settings of rotations, with CTranslate2's defaults."""
NEAR = 1e-4
"""Largest difference of a table from sinusoids that are rounded elsewhere."""
_ZERO = ("alibi", "scale_alibi", "final_logit_softcapping", "sliding_window", "layer_norm_use_residual")
"""The same, of settings that must be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ct2Model:
    """A model that was read.

    config, source, target: settings and tokenizers.  weights: by our name, read when they are looked up.
    notes: a line for each thing that was left out.  tokens: CTranslate2's names of the ids of both sides.
    adds_eos: whether CTranslate2 itself adds EOS to a source.
    """

    folder: Path
    config: Config
    source: Tokenizer
    target: Tokenizer
    weights: "Weights"
    notes: tuple[str, ...]
    tokens: tuple[Sequence[str], Sequence[str]]
    adds_eos: bool

    def save(self, folder: Path) -> None:
        """Commit the model to a new model folder, one weight at a time in memory."""
        commit(folder, model_files(self.config, self.weights, self.source, self.target))


class Weights(dict[str, Any]):
    """Weights by our name, and scales of those in int8; each is read from the file when it is looked up."""

    def __getitem__(self, name: str) -> Array:
        read: Read = super().__getitem__(name)
        return read()


def read_ctranslate2(
    folder: Path,
    sentences: Sequence[Path] = (),
    data: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> Ct2Model:
    """Read the model in a folder.

    sentences: SentencePiece models of both sides; by default those in the folder.  data: [data] settings.
    search: [decoding] settings other than `SEARCH`.
    Raises ModelFolderError for missing files or weights of another shape, DataError for a damaged file, SettingsError
    naming the first setting that we cannot express.
    """
    binary = read_binary(folder / BINARY)
    if binary.layout != _LAYOUT or binary.revision > _REVISION:
        found = f"{binary.layout} {binary.revision}"
        raise SettingsError(f"{binary.place}: found {found!r}, expected {_LAYOUT!r} up to {_REVISION}")
    stated = _stated(folder, binary)
    tokens = _vocabularies(folder)
    network = _Network(binary, stated, (len(tokens[0]), len(tokens[1])))
    model = network.model_values()
    source, target = _tokenizers(folder, stated, tokens, sentences, network)
    if source.languages:
        model["language_tags"] = "target" if network.starts_with_eos else "source"
    values = {
        "data": dict(data or {}),
        "model": model,
        "decoding": {**SEARCH, **(search or {})},
        "tokenizer": {**source.settings.model_dump(), "shared": source is target},
    }
    config = Config.build(values, place=str(binary.place))
    weights = Weights(network.weights(config))
    network.refuse_unread()
    return Ct2Model(
        folder=folder,
        config=config,
        source=source,
        target=target,
        weights=weights,
        notes=("vmap.txt is left out: every token is possible",) if (folder / "vmap.txt").exists() else (),
        tokens=tokens,
        adds_eos=stated["add_source_eos"],
    )


def _stated(folder: Path, binary: Binary) -> dict[str, Any]:
    """Return what config.json states, or variables of the file before version 6."""
    path = folder / CONFIG
    if binary.version < WITH_CONFIG:
        tokens = {name: binary.text(name, usual) for name, usual in _TOKENS.items()}
        start = tokens["bos_token" if binary.number("with_target_bos", 1) else "eos_token"]
        flags = {f"add_source_{end}": bool(binary.number(f"with_source_{end}", 0)) for end in ("bos", "eos")}
        given = binary.number("user_decoder_start_tokens", 0)
        return {**tokens, **flags, "decoder_start_token": None if given else start}
    stated = read_json(path, dict)
    if stated.get("quantization_type"):
        raise SettingsError(f"{path}: quantization_type: found {stated['quantization_type']!r}, expected none")
    for name in _TOKENS:
        if not isinstance(stated.get(name), str):
            raise SettingsError(f"{path}: {name}: found {stated.get(name)!r}, expected a token")
    flags = {name: stated.get(name) is True for name in ("add_source_bos", "add_source_eos")}
    return {"decoder_start_token": stated["bos_token"], **stated, **flags}


def read_json(path: Path, kind: type[Any]) -> Any:
    """Return the dict or list in a JSON file. Raises ModelFolderError if it is missing, DataError if it is damaged."""
    try:
        return json_values.read_json(path, kind)
    except FileNotFoundError:
        raise ModelFolderError(f"{path}: no such file, expected it in a folder of CTranslate2") from None


def _vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Return the tokens of source and target by id, one object if they are shared."""
    shared = _vocabulary(folder, "shared_vocabulary")
    if shared is not None:
        return shared, shared
    sides = [_vocabulary(folder, f"{side}_vocabulary") for side in ("source", "target")]
    if sides[0] is None or sides[1] is None:
        raise ModelFolderError(f"{folder}: expected shared_vocabulary.json, or source_ and target_vocabulary.json")
    return sides[0], sides[1]


def _vocabulary(folder: Path, name: str) -> list[str] | None:
    listed, lines = folder / f"{name}.json", folder / f"{name}.txt"
    if listed.exists():
        return [*map(str, read_json(listed, list))]
    if not lines.exists():
        return None
    try:
        tokens = lines.read_bytes().decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{lines}: not UTF-8 text, expected a token in each line") from None
    return [token.removesuffix("\r") for token in tokens] if all(each.endswith("\r") for each in tokens) else tokens


class _Network:
    """The shape of a model, and its weights under our names."""

    def __init__(self, binary: Binary, stated: Mapping[str, Any], sizes: tuple[int, int]) -> None:
        """sizes: of the vocabularies, without our BOS."""
        self._binary, self._stated, self._sizes = binary, stated, sizes
        self._seen: set[str] = set()
        self._embeddings = {"encoder": "encoder/embeddings_0/weight", "decoder": "decoder/embeddings/weight"}
        if self._embeddings["encoder"] not in binary.variables:
            self._embeddings["encoder"] = "encoder/embeddings/weight"
        self.starts_with_zeros = bool(binary.number("decoder/start_from_zero_embedding", 0))
        self.starts_with_eos = stated["decoder_start_token"] == stated["eos_token"] and not self.starts_with_zeros
        # BART's tokenizer writes BOS before a text, which CTranslate2 gets as a token.
        self.reads_begin = (
            self.starts_with_eos and not stated["add_source_eos"] and self._has(f"encoder/{EMBEDDING_NORM}")
        )
        self._width = self._rows("encoder/layer_0/self_attention/linear_1/weight")

    def _has(self, name: str) -> bool:
        return name in self._binary.variables

    def _rows(self, name: str) -> int:
        stored = self._binary.variables.get(name)
        return 0 if stored is None or stored.ndim != 2 else len(stored)

    def _number(self, name: str, default: float) -> float:
        """Return a setting of both sides. Raises SettingsError if they differ."""
        root = self._binary.number(name, default)  # files before revision 5 of the layout
        sides = [self._binary.number(f"{side}/{name}", root) for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise self._error(f"decoder/{name}", f"{sides[1]:g}", f"{sides[0]:g}, that of the encoder")
        return sides[0]

    def _error(self, name: str, found: str, expected: str) -> SettingsError:
        return SettingsError(f"{self._binary.place}: {name}: found {found}, expected {expected}")

    def _layers(self, side: str) -> int:
        numbers = [re.match(rf"{side}/layer_(\d+)/", name) for name in self._binary.variables]
        return len({match[1] for match in numbers if match})

    def model_values(self) -> dict[str, Any]:
        """Return the [model] settings. Raises SettingsError naming one that we do not have."""
        first, ffn = "encoder/layer_0/self_attention", "encoder/layer_0/ffn"
        heads = int(self._number("num_heads", 8))
        self._heads = heads
        attention = self._rows(f"{first}/linear_0/weight") // 3
        if not self._width or heads < 1 or not attention or attention % heads:
            found = f"{self._rows(f'{first}/linear_0/weight')} rows for {heads} heads"
            raise self._error(f"{first}/linear_0/weight", found, "queries, keys and values of each head")
        self._head_width = attention // heads
        gated = self._has(f"{ffn}/linear_0_noact/weight")
        kind = int(self._number("activation", 0))
        if (kind, gated) not in _ACTIVATIONS:
            found = f"{kind}{' with gates' if gated else ''}"
            raise self._error("activation", found, "0 (ReLU), 2 (SWISH) or 3 (GELU), or with gates 1 or 2")
        pre, final = bool(self._number("pre_norm", 1)), self._has("encoder/layer_norm/gamma")
        if pre != final:
            raise self._error("layer_norm", "one" if final else "none", "a final norm if and only if pre_norm is 1")
        self._rms = not self._has(f"{first}/layer_norm/beta")
        epsilon = self._stated.get("layer_norm_epsilon")
        self._biased = any(name.endswith(("/bias", "/beta")) and "layer_" in name for name in self._binary.variables)
        self._tie, scaled, self._factors = self._tied()
        positions, longest = self._positions(first)
        relative = {}
        if positions == "relative":
            furthest = int(self._binary.number(f"{first}/relative_attention_max_distance", 128))
            relative = {"relative_buckets": self._rows(f"{first}/{RELATIVE}"), "relative_max_distance": furthest}
        return {
            "width": self._width,
            "feed_forward": self._rows(f"{ffn}/linear_0/weight"),
            "encoder_layers": self._layers("encoder"),
            "decoder_layers": self._layers("decoder"),
            "attention_heads": heads,
            "head_width": 0 if attention == self._width else self._head_width,
            "norm": "pre" if pre else "post",
            "normalization": "rms" if self._rms else "layer",
            "norm_epsilon": epsilon or (1e-6 if self._rms else 1e-5),
            "activation": _ACTIVATIONS[kind, gated],
            "positions": positions,
            "max_positions": longest,
            "scale_embeddings": scaled,
            "embedding_norm": self._has(f"encoder/{EMBEDDING_NORM}"),
            "bias": self._biased,
            "head": {"kind": "softmax", "tie": self._tie, "bias": self._head_biased},
            **relative,
        }

    @property
    def _head_biased(self) -> bool:
        return self._has("decoder/projection/bias") or self.starts_with_zeros

    def _scale(self, side: str) -> float:
        """Return the factor of embeddings: a flag for √D in 8 bits, or a number."""
        name = next(filter(self._has, (f"{side}/scale_embeddings", f"{side}/embeddings/multiply_by_sqrt_depth")), None)
        if name is None:
            return math.sqrt(self._width)
        value = self._binary.number(name, 1.0)
        flag = self._binary.variables[name].dtype == "i1"
        return (math.sqrt(self._width) if value else 1.0) if flag else value

    def _tied(self) -> tuple[str, bool, dict[str, float]]:
        """Return `model.head.tie`, `model.scale_embeddings`, and the factor of each of our tables.

        CTranslate2 multiplies embeddings and the states of the output layer by any factors. We have √D alone, for
        embeddings; the rest goes into the tables, which can be one if they have the same.
        """
        encoder, decoder = self._embeddings.values()
        root, outputs = math.sqrt(self._width), self._binary.number("decoder/scale_outputs", 1.0)
        scales = {side: self._scale(side) for side in self._embeddings}
        both = self._binary.same(encoder, decoder) and _close(*scales.values())
        tied = self._binary.same(decoder, HEAD)
        scaled = (
            _close(scales["decoder"], outputs * root) if tied else all(_close(root, each) for each in scales.values())
        )
        tied = tied and (scaled or _close(scales["decoder"], outputs))
        ours = root if scaled else 1.0
        factors = {side: 1.0 if _close(each, ours) else each / ours for side, each in scales.items()}
        tie = ("all" if both else "target") if tied else "embeddings" if both else "none"
        return tie, scaled, {**factors, "head": outputs}

    def _positions(self, first: str) -> tuple[str, int]:
        """Return `model.positions` and `model.max_positions`."""
        if self._has(f"{first}/{RELATIVE}"):
            return "relative", MAX_POSITIONS
        if self._has(f"{first}/rotary_dim"):
            found = [self._binary.number(f"{first}/{name}", usual) for name, usual in _ROTARY]
            if found[0] not in (0, self._head_width) or found[1:] != [0, 10_000, 1]:
                raise self._error(f"{first}/rotary_dim", f"{found}", "all dimensions in two halves, with base 10000")
            return "rotary", MAX_POSITIONS
        tables = {side: self._table(side) for side in self._embeddings}
        if not all(map(len, tables.values())):
            raise self._error("position_encodings/encodings", "no rows", "some")
        longest = min(MAX_POSITIONS, *map(len, tables.values()))
        if not any(table[:longest].any() for table in tables.values()):
            return "none", longest
        for name, (start, last) in SINUSOIDS.items() if self._width % 2 == 0 else ():
            rows = sinusoids(start + longest, self._width, longest_last=last)[start:]
            if all(np.abs(table[:longest] - rows).max() < NEAR for table in tables.values()):
                return name, longest
        return "learned", longest

    def _table(self, side: str, longest: int | None = None) -> Array:
        """Return the vectors of positions [longest, D]: those stored, or those that CTranslate2 computes."""
        name = f"{side}/position_encodings/encodings"
        if not self._has(name):
            return sinusoids(1 + MAX_POSITIONS, self._width, longest_last=True)[1:, : self._width][:longest]
        self._seen.add(name)
        return self._binary.weight(name, len(self._binary.variables[name]), self._width)[:longest]

    def _weight(
        self, ours: str, name: str, *shape: int, factors: Sequence[float] = (1.0,), end: Array | None = None
    ) -> dict[str, Read]:
        """Return what reads a weight, in the format of the file if that is float16, bfloat16 or int8, and its scales.

        factors: of equal shares of its rows.  end: further rows.
        """
        self._seen.add(name)
        stored = self._binary.stored(name, *shape)
        by_row = np.repeat(np.array(factors, np.float32), len(stored) // len(factors))
        if stored.dtype == "i1" and stored.ndim == 2:
            added = 0 if end is None else len(end)  # rows of zeros
            scales = np.pad(self._binary.scales(name) * by_row, (0, added))
            rows = (lambda: np.pad(stored, ((0, added), (0, 0)))) if added else (lambda: stored)
            return {ours: rows, f"{ours}{SCALE}": lambda: scales}

        def read() -> Array:
            array = self._binary.weight(name, *shape)
            if end is None and (by_row == 1).all():
                return stored if stored.dtype.itemsize == 2 and stored.dtype.kind != "i" else array
            array = array * by_row.reshape(-1, *[1] * (stored.ndim - 1))
            return array if end is None else np.concatenate([array, end])

        return {ours: read}

    def weights(self, config: Config) -> dict[str, Read]:
        """Return what reads each of our weights. Raises ModelFolderError naming the first one of another shape."""
        settings, width, weights = config.model, self._width, dict[str, Read]()
        zeros = np.zeros((1, width), np.float32) if self.starts_with_zeros else None
        sizes = dict(zip(("encoder", "decoder"), self._sizes, strict=True))
        for side, name in self._embeddings.items():
            ours = f"{side}.embedding.table.weight"
            table = self._weight(ours, name, sizes[side], width, factors=[self._factors[side]], end=zeros)  # checked
            if side == "encoder" or self._tie not in ("all", "embeddings"):
                weights |= table
        head = self._weight("head.weight", HEAD, sizes["decoder"], width, factors=[self._factors["head"]], end=zeros)
        if self._tie in ("embeddings", "none"):
            weights |= head
        if self._head_biased:
            end = np.full(1, IMPOSSIBLE, np.float32) if self.starts_with_zeros else None
            weights |= self._bias("head.bias", "decoder/projection/bias", sizes["decoder"], end=end)
        for side in self._embeddings:
            if settings.positions == "learned":
                weights[f"{side}.embedding.positions.table"] = partial(self._table, side, settings.max_positions)
            if settings.embedding_norm:
                weights |= self._norm(f"{side}.embedding.norm", f"{side}/layernorm_embedding")
            if settings.norm == "pre":
                weights |= self._norm(f"{side}.norm", f"{side}/layer_norm")
            for layer in range(self._layers(side)):
                weights |= self._layer(side, f"{side}.layers.{layer}", f"{side}/layer_{layer}", config)
        return weights

    def _layer(self, side: str, ours: str, theirs: str, config: Config) -> dict[str, Read]:
        settings, attention = config.model, f"{theirs}/self_attention"
        width, inner, size = settings.width, settings.feed_forward, settings.attention_width
        weights = dict[str, Read]()
        if settings.positions == "relative":
            bias = f"{attention}/{RELATIVE}"
            first = f"{side}/layer_0/self_attention/{RELATIVE}"
            read = self._weight(
                f"{side}.embedding.positions.bias", bias, settings.relative_buckets, settings.attention_heads
            )
            if not self._binary.same(first, bias):
                raise self._error(bias, "other biases", "those of the first layer")
            if bias == first:
                weights |= read
        scale = self._queries_scale(attention)
        name = f"{ours}.self_attention"
        weights |= self._linear(f"{name}.query_key_value", f"{attention}/linear_0", 3 * size, width, [scale, 1.0, 1.0])
        weights |= self._linear(f"{name}.output", f"{attention}/linear_1", width, size)
        around = "around_attention" if side == "encoder" else "around_self"
        weights |= self._norm(f"{ours}.{around}.norm", f"{attention}/layer_norm")
        if side == "decoder":
            attention, name = f"{theirs}/attention", f"{ours}.cross_attention"
            weights |= self._linear(
                f"{name}.query", f"{attention}/linear_0", size, width, [self._queries_scale(attention)]
            )
            weights |= self._linear(f"{name}.key_value", f"{attention}/linear_1", 2 * size, width)
            weights |= self._linear(f"{name}.output", f"{attention}/linear_2", width, size)
            weights |= self._norm(f"{ours}.around_cross.norm", f"{attention}/layer_norm")
        block, name = f"{theirs}/ffn", f"{ours}.feed_forward"
        parts = ["linear_0", "linear_0_noact"] if settings.activation in GATED else ["linear_0"]
        halves = [self._linear(f"{name}.inner", f"{block}/{part}", inner, width) for part in parts]
        kinds = [self._binary.variables[f"{block}/{part}/weight"].dtype for part in parts]
        if kinds[0] != kinds[-1]:
            raise self._error(f"{block}/{parts[-1]}/weight", str(kinds[-1]), f"{kinds[0]}, as {parts[0]}")
        for each in halves[0]:
            reads = [half[each] for half in halves]
            weights[each] = partial(_joined, reads) if len(reads) > 1 else reads[0]
        weights |= self._linear(f"{name}.outer", f"{block}/linear_1", width, inner)
        return weights | self._norm(f"{ours}.around_feed_forward.norm", f"{block}/layer_norm")

    def _queries_scale(self, attention: str) -> float:
        """Return the factor of queries beyond 1/√d, which we have."""
        usual = 1 / math.sqrt(self._head_width)
        scale = self._binary.number(f"{attention}/queries_scale", usual) / usual
        return 1.0 if _close(scale, 1.0) else scale

    def _linear(
        self, ours: str, theirs: str, rows: int, columns: int, factors: Sequence[float] = (1.0,)
    ) -> dict[str, Read]:
        weights = self._weight(f"{ours}.weight", f"{theirs}/weight", rows, columns, factors=factors)
        return weights | (self._bias(f"{ours}.bias", f"{theirs}/bias", rows, factors) if self._biased else {})

    def _bias(
        self, ours: str, name: str, rows: int, factors: Sequence[float] = (1.0,), end: Array | None = None
    ) -> dict[str, Read]:
        """Return what reads a bias, which is 0 where a file has none."""
        if self._has(name):
            return self._weight(ours, name, rows, factors=factors, end=end)
        nothing = np.zeros(rows, np.float32)
        return {ours: lambda: nothing if end is None else np.concatenate([nothing, end])}

    def _norm(self, ours: str, theirs: str) -> dict[str, Read]:
        weights = self._weight(f"{ours}.weight", f"{theirs}/gamma", self._width)
        return weights if self._rms else weights | self._weight(f"{ours}.bias", f"{theirs}/beta", self._width)

    def refuse_unread(self) -> None:
        """Raise SettingsError naming the first variable that was not read."""
        for name, stored in self._binary.variables.items():
            end = name.rpartition("/")[2]
            if end in _ZERO and stored.size == 1 and not stored.any():
                continue
            if name not in self._seen and end not in _SETTINGS and not end.endswith("weight_scale"):
                raise self._error(name, "it", "a part of a Transformer that Translume has")


def _close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-5)


def _joined(reads: Sequence[Read]) -> Array:
    return np.concatenate([read() for read in reads])


def _tokenizers(
    folder: Path,
    stated: Mapping[str, Any],
    tokens: tuple[list[str], list[str]],
    sentences: Sequence[Path],
    network: _Network,
) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both sides, one object if their files and vocabularies are the same."""
    paths = list(sentences) or sorted(path for path in folder.iterdir() if SENTENCES.fullmatch(path.name))
    paths.sort(key=lambda path: not path.name.startswith("s"))  # source.spm and target.spm, src and tgt
    library = not sentences and (folder / LIBRARY).exists()
    if not sentences and (own := sorted(folder.glob(f"*{SETTINGS}"))):  # of an export
        paths = own
    elif library and (network.starts_with_eos or not paths):  # as transformers reads BART, mBART and NLLB
        paths = [folder / LIBRARY]
    if not 1 <= len(paths) <= 2:
        found = ", ".join(path.name for path in paths) or "none"
        raise ModelFolderError(
            f"{folder}: SentencePiece models: found {found}, expected one or two beside {BINARY}, or with --vocabs"
        )
    source = _tokenizer(paths[0], stated, tokens[0], network)
    same = tokens[0] == tokens[1] and paths[0].read_bytes() == paths[-1].read_bytes()
    return source, source if same else _tokenizer(paths[-1], stated, tokens[1], network)


def _tokenizer(path: Path, stated: Mapping[str, Any], tokens: list[str], network: _Network) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model, or a tokenizer.json, with the ids of a vocabulary."""
    if path.name.endswith(SETTINGS):
        tokenizer = Tokenizer.from_json(path.read_text(encoding="utf-8", errors="replace"), str(path))
        if len(tokenizer) != len(tokens):
            raise DataError(f"{path}: found {len(tokenizer):,} tokens, expected {len(tokens):,} by the vocabulary")
        return tokenizer
    pieces = [*tokens, BEGIN] if network.starts_with_zeros else tokens
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    if len(ids) != len(pieces):
        raise DataError(f"{path.parent}: a token of the vocabulary occurs twice")
    start = BEGIN if network.starts_with_zeros else stated["decoder_start_token"]
    for token in (stated["unk_token"], stated["eos_token"], start):
        if token not in ids:
            raise SettingsError(f"{path.parent}: found the special token {token!r}, expected one of the vocabulary")
    eos, bos = ids[stated["eos_token"]], ids[start]
    pad = next((ids[name] for name in PADDING if name in ids and ids[name] != eos), bos)
    form = TAGS if network.starts_with_eos else T5_TAGS
    matches = {id_: match for piece, id_ in ids.items() if (match := form.fullmatch(piece))}
    languages = {match[match.lastindex or 0]: id_ for id_, match in matches.items()} if len(matches) > 1 else {}
    if not languages and (stated["add_source_bos"] or network.reads_begin):
        languages = {"": ids[stated["bos_token"]]}  # the token that begins every text
    ends = stated["add_source_eos"] or start != stated["bos_token"]
    specials = SpecialIds(pad=pad, bos=bos, eos=eos, unk=ids[stated["unk_token"]], ends_source=ends)
    try:
        if path.name == LIBRARY:
            return Tokenizer(
                Vocabulary.from_library(specials, LibraryIds(read_json(path, dict), len(pieces)), languages)
            )
        split = read_sentencepiece(path, reserved=SENTINELS, codes=any(map(CODE.fullmatch, pieces)))
        known = {*scores_of(split.proto), *BYTES, *(pieces[id_] for id_ in (pad, bos, eos, ids[stated["unk_token"]]))}
        silent = [id_ for piece, id_ in ids.items() if RESERVED.fullmatch(piece) and piece not in known]
        return Tokenizer(Vocabulary.from_sentencepiece(split, pieces, specials, languages=languages, silent=silent))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def comparison(model: Ct2Model) -> tuple[Callable[[Any], Any] | None, str]:
    """Return the function that compares a checkpoint with this model in CTranslate2, or None and the reason why not."""
    if find_spec("ctranslate2") is None:
        return None, "ctranslate2 is not installed; pip install ctranslate2"
    return partial(_compare, model=model), ""


def _compare(checkpoint: Any, model: Ct2Model) -> Any:
    """Return the certificate. Raises TranslumeError if log-probabilities differ too much."""
    import ctranslate2

    from translume.interchange.certificate import TOGETHER, forced_targets

    forced = forced_targets(checkpoint)
    return_memory()
    end = [] if model.adds_eos else model.source.specials.source_end
    source, target = (
        [[names[id_] for id_ in (*row, *added)] for row in rows]
        for names, rows, added in zip(model.tokens, (forced.sources, forced.targets), (end, ()), strict=True)
    )
    try:
        theirs = ctranslate2.Translator(str(model.folder), compute_type="float32")
        scores = theirs.score_batch(source, target, max_input_length=0, max_batch_size=TOGETHER)
    except (RuntimeError, ValueError) as error:
        raise TranslumeError(f"{model.folder}: CTranslate2 cannot read it: {error}") from None
    return forced.compare([each.log_probs for each in scores], "CTranslate2", model.folder)
