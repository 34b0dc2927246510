"""Read a state dict of torch.nn.Transformer, or of the Annotated Transformer, as a model of ours."""

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer
from torch import Tensor, nn

from translume.checkpoint import Checkpoint, assign, build_model
from translume.config import Config, ModelSettings
from translume.errors import DataError, ModelFolderError, SettingsError, refused
from translume.interchange.certificate import Certificate, forced_targets, label_log_probs
from translume.interchange.huggingface.reader import is_plain
from translume.interchange.pickled import load_pickled
from translume.json_values import read_json
from translume.model.positions import encoding_class
from translume.text import SpecialIds, Tokenizer, Vocabulary
from translume.text.imported import LibraryIds

Layout = Literal["nn.Transformer", "annotated"]
Norm = tuple[str, str]
"""Names of the weight and the bias of a norm."""
WRAPPERS = ("model_state_dict", "state_dict", "model")
"""Names under which training programs store a state dict beside other values."""
POSITIONS = ("interleaved", "sinusoidal")
"""The encodings that a stored table of positions is compared with; another table is learned positions."""
MAX_POSITIONS = 5000
"""Number of positions in the tutorials."""


class Tables(NamedTuple):
    """The names of the tensors outside the layers: embeddings, output layer and its bias, tables of positions."""

    source: str
    target: str
    output: str
    bias: str
    positions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateDictModel:
    """A model that was read, one line for each thing that was assumed, and its comparison with a plain forward."""

    checkpoint: Checkpoint
    notes: tuple[str, ...]
    compare: Callable[[Checkpoint], Certificate]


@dataclass(frozen=True, kw_only=True)
class StateDict:
    """What a file of PyTorch does not say about its state dict.

    heads: number of attention heads.  specials: ids of the unknown token, of padding, and of those that begin and end a
    text.  overrides: assignments of settings, such as "model.norm=pre"; by default those of PyTorch's tutorial, or of
    the Annotated Transformer.
    """

    layout: Layout
    heads: int
    specials: tuple[int, int, int, int] = (0, 1, 2, 3)
    overrides: Sequence[str] = ()

    def read(self, path: Path, vocabularies: Sequence[Path]) -> StateDictModel:
        """Read a file and the vocabularies of source and target.

        Raises ModelFolderError for a damaged file or tensors of other names and shapes, DataError for a damaged
        vocabulary or numbers that are not finite, SettingsError for settings or vocabularies that do not fit.
        """
        if len(vocabularies) not in (1, 2):
            raise SettingsError(f"{path}: found no vocabularies, expected them with --vocabs SOURCE TARGET")
        state = _tensors(path)
        names = _Names.from_state(self.layout, path, state)
        tables = _tables(path, state, names)
        source, target = _tokenizer(vocabularies[0], self.specials), _tokenizer(vocabularies[-1], self.specials)
        for tokenizer, name, file in ((source, tables.source, 0), (target, tables.target, -1)):
            if len(tokenizer) != len(state[name]):
                raise SettingsError(
                    f"{vocabularies[file]}: found {len(tokenizer):,} tokens, expected {len(state[name]):,} by {name}"
                )
        config = self._config(path, state, names, tables, source)
        if config.model.language_tags == "source":  # BOS begins every source, instead of a tag
            source = Tokenizer(replace(source.vocabulary, languages={"": source.specials.bos}))
        model = build_model(config.model, len(source), len(target)).eval()
        assign(model, _weights(path, state, names, tables, config.model).items(), str(path))
        checkpoint = Checkpoint(config=config, model=model, source_tokenizer=source, target_tokenizer=target)
        return StateDictModel(
            checkpoint,
            (f"{path}: not in the file, so assumed: {_assumed(config.model)}",),
            lambda saved: _compare(saved, path, state, names, tables),
        )

    def _config(
        self, path: Path, state: Mapping[str, Tensor], names: "_Names", tables: Tables, source: Tokenizer
    ) -> Config:
        width = state[tables.source].size(1)
        if self.heads < 1 or width % self.heads:
            raise SettingsError(f"--heads: found {self.heads}, expected a divisor of the width, {width}")
        same = {
            "source": torch.equal(state[tables.source], state[tables.target]),
            "output": torch.equal(state[tables.output], state[tables.target]),
        }
        tie = {(1, 1): "all", (1, 0): "embeddings", (0, 1): "target"}.get((same["source"], same["output"]), "none")
        annotated = self.layout == "annotated"
        final = names.final("encoder")[0] in state
        model: dict[str, Any] = {
            "width": width,
            "feed_forward": len(state[names.feed_forward]),
            "encoder_layers": names.layers("encoder", state),
            "decoder_layers": names.layers("decoder", state),
            "attention_heads": self.heads,
            "norm": "pre" if annotated else "post",
            "norm_epsilon": 1e-12 if annotated else 1e-5,
            "positions": POSITIONS[0],
            "max_positions": MAX_POSITIONS,
            "language_tags": "source",  # BOS begins a source as well
            "head": {"kind": "softmax", "tie": tie, "bias": bool(tables.bias)},
        }
        if tables.positions:
            table = _position_table(state[tables.positions[0]])
            model["max_positions"] = len(table)
            model["positions"] = _stored_positions(table, width)
        values: dict[str, Any] = {"model": model, "decoding": {"strategy": "greedy", "split": "never"}}
        values["tokenizer"] = {**source.settings.model_dump(), "shared": False}
        model["final_norm"] = final and Config.build(values, self.overrides, place=str(path)).model.norm == "post"
        config = Config.build(values, self.overrides, place=str(path))
        for name, wanted in (("activation", ("relu", "gelu")), ("normalization", ("layer",)), ("ends_normed", (final,)),
                             ("language_tags", ("source", "none"))):  # fmt: skip
            if (value := getattr(config.model, name)) not in wanted:
                raise SettingsError(f"model.{name}: found {value!r}, expected {' or '.join(map(repr, wanted))} here")
        return config


@dataclass(frozen=True)
class _Names:
    """The names of a layout's tensors, after the prefix of the network."""

    prefix: str
    annotated: bool

    @classmethod
    def from_state(cls, layout: str, path: Path, state: Mapping[str, Tensor]) -> "_Names":
        annotated = layout == "annotated"
        first = "encoder.layers.0.self_attn." + ("linears.0.weight" if annotated else "in_proj_weight")
        prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
        if len(prefixes) != 1:
            raise ModelFolderError(
                f"{path}: found {len(prefixes)} tensors {first}, expected one for the layout {layout}"
            )
        return cls(prefixes[0], annotated)

    @property
    def feed_forward(self) -> str:
        return f"{self.prefix}encoder.layers.0." + ("feed_forward.w_1.weight" if self.annotated else "linear1.weight")

    @property
    def cross(self) -> str:
        return "src_attn" if self.annotated else "multihead_attn"

    def final(self, side: str) -> Norm:
        return self._norm(f"{self.prefix}{side}.norm")

    def layers(self, side: str, state: Mapping[str, Tensor]) -> int:
        pattern = re.compile(re.escape(f"{self.prefix}{side}.layers.") + "([0-9]+)[.]")
        return 1 + max((int(match[1]) for match in map(pattern.match, state) if match), default=-1)

    def _norm(self, name: str) -> Norm:
        return (f"{name}.a_2", f"{name}.b_2") if self.annotated else (f"{name}.weight", f"{name}.bias")

    def layer(self, side: str, number: int) -> dict[str, tuple[str, ...]]:
        """Return for each part of our layer the names of theirs, whose concatenation it is, "weight" or "bias" missing.

        The first part of torch's cross-attention is our query, the others are keys and values.
        """
        theirs = f"{self.prefix}{side}.layers.{number}."
        blocks = ["self_attention", "cross_attention"][: 1 + (side == "decoder")]
        parts: dict[str, tuple[str, ...]] = {}
        for ours, name in zip(blocks, ("self_attn", self.cross), strict=False):
            if self.annotated:
                parts[ours] = tuple(f"{theirs}{name}.linears.{place}." for place in range(3))
            else:
                parts[ours] = (f"{theirs}{name}.in_proj_",)
            parts[f"{ours}.output"] = (theirs + name + (".linears.3." if self.annotated else ".out_proj."),)
        inner = ("feed_forward.w_1.", "feed_forward.w_2.") if self.annotated else ("linear1.", "linear2.")
        parts |= {
            f"feed_forward.{ours}": (theirs + name,) for ours, name in zip(("inner", "outer"), inner, strict=True)
        }
        return parts

    def norms(self, side: str, number: int) -> dict[str, Norm]:
        """Return for each norm of our layer the names of theirs."""
        ours = ["attention", "feed_forward"] if side == "encoder" else ["self", "cross", "feed_forward"]
        name = "sublayer.{}.norm" if self.annotated else "norm{}"
        theirs = f"{self.prefix}{side}.layers.{number}."
        return {
            f"around_{each}.norm": self._norm(theirs + name.format(place))
            for place, each in enumerate(ours, 0 if self.annotated else 1)
        }


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file in float32, under their own names or within one of WRAPPERS."""
    values = load_pickled(path, "tensors only")
    for name in WRAPPERS:
        if isinstance(values, dict) and isinstance(values.get(name), dict):
            values = values[name]
    if not isinstance(values, dict) or not values or not all(map(is_plain, values.values())):
        raise ModelFolderError(f"{path}: expected a state dict, tensors by name, alone or as {', '.join(WRAPPERS)}")
    state = {str(name): tensor.float().clone() for name, tensor in values.items()}
    for name, tensor in state.items():
        if not bool(tensor.isfinite().all()):
            raise DataError(f"{path}: {name} has numbers that are not finite")
    return state


def _tables(path: Path, state: Mapping[str, Tensor], names: _Names) -> Tables:
    """Return the names of the tensors outside the layers, by their shapes and words in their names."""
    inside = tuple(f"{names.prefix}{side}.{part}" for side in ("encoder", "decoder") for part in ("layers.", "norm."))
    outside = {name: tensor for name, tensor in state.items() if not name.startswith(inside)}
    positions = tuple(
        name for name, tensor in outside.items() if re.search(r"pos|(^|\.)pe$", name) and tensor.numel() != len(tensor)
    )
    biases = [name for name, tensor in outside.items() if tensor.ndim == 1 and f"{name[:-4]}weight" in outside]
    tables = [name for name, tensor in outside.items() if tensor.ndim == 2 and name not in positions]
    outputs = [name for name in tables if f"{name[:-6]}bias" in biases or re.search("generator|proj|head|fc|out", name)]
    embeddings = [name for name in tables if name not in outputs]
    unknown = sorted(outside.keys() - {*positions, *biases, *tables})
    width = {state[name].size(1) for name in tables}
    if unknown or len(biases) > 1 or len(outputs) > 1 or not 1 <= len(embeddings) <= 2 or len(width) != 1:
        shown = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in outside.items())
        raise ModelFolderError(
            f"{path}: outside the layers found {shown or 'nothing'}, expected an embedding of source and target, and "
            "an output layer"
        )
    embeddings.sort(key=lambda name: bool(re.search("tgt|trg|target|dec|out", name)))
    return Tables(embeddings[0], embeddings[-1], (outputs or embeddings)[-1], "".join(biases), positions)


def _position_table(stored: Tensor) -> Tensor:
    """Return a stored table [L, D], [1, L, D] or [L, 1, D] as [L, D]."""
    return stored.flatten(0, -2)


def _stored_positions(table: Tensor, width: int) -> str:
    if table.size(1) == width and width % 2 == 0:
        for name in POSITIONS:
            computed = encoding_class(name)(
                ModelSettings(width=width, attention_heads=1, max_positions=len(table))
            ).table
            assert computed is not None
            if torch.allclose(computed, table, rtol=0, atol=1e-3):  # some angles have single precision
                return name
    return "learned"


def _weights(
    path: Path, state: Mapping[str, Tensor], names: _Names, tables: Tables, settings: ModelSettings
) -> dict[str, Tensor]:
    """Return our state dict. Raises ModelFolderError for a tensor that is missing or unknown."""
    read: set[str] = set()

    def take(name: str) -> Tensor:
        if name not in state:
            raise ModelFolderError(f"{path}: no {name}, expected it by the layout")
        read.add(name)
        return state[name].clone()

    # The Annotated Transformer divides by the deviation of a sample of D numbers.
    gain = math.sqrt(1 - 1 / settings.width) if names.annotated else 1.0
    weights: dict[str, Tensor] = {}

    def norm(ours: str, theirs: Norm) -> None:
        weights[f"{ours}.weight"], weights[f"{ours}.bias"] = take(theirs[0]) * gain, take(theirs[1])

    for side, layers in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        if settings.ends_normed:
            norm(f"{side}.norm", names.final(side))
        for number in range(layers):
            ours = f"{side}.layers.{number}."
            for name, each in names.norms(side, number).items():
                norm(ours + name, each)
            for name, parts in names.layer(side, number).items():
                for kind in ("weight", "bias"):
                    whole = torch.cat([take(part + kind) for part in parts])
                    if name == "self_attention":
                        weights[f"{ours}{name}.query_key_value.{kind}"] = whole
                    elif name == "cross_attention":
                        if whole.size(0) != 3 * settings.width:
                            raise ModelFolderError(
                                f"{path}: {side}.layers.{number}.{names.cross} is {list(whole.shape)}, expected three "
                                f"times the width, {settings.width}"
                            )
                        query, *others = whole.view(-1, settings.width, *whole.shape[1:]).unbind()
                        weights[f"{ours}{name}.query.{kind}"] = query
                        weights[f"{ours}{name}.key_value.{kind}"] = torch.cat(others)
                    else:
                        weights[f"{ours}{name}.{kind}"] = whole
    tie = settings.head.tie
    source = weights["encoder.embedding.table.weight"] = take(tables.source)
    target = weights["decoder.embedding.table.weight"] = source if tie in ("all", "embeddings") else take(tables.target)
    weights["head.weight"] = target if tie in ("all", "target") else take(tables.output)
    if tables.bias:
        weights["head.bias"] = take(tables.bias)
    if settings.positions == "learned":
        for side, name in zip(("encoder", "decoder"), (tables.positions[0], tables.positions[-1]), strict=True):
            weights[f"{side}.embedding.positions.table"] = _position_table(take(name))
    if unread := state.keys() - read - {*tables.positions, tables.source, tables.target, tables.output}:
        raise ModelFolderError(f"{path}: holds {min(unread)}, which the layout does not have")
    return weights


def _assumed(settings: ModelSettings) -> str:
    names = ("attention_heads", "norm", "activation", "positions", "scale_embeddings", "language_tags")
    return ", ".join(f"model.{name} = {json.dumps(getattr(settings, name))}" for name in names)


def _tokenizer(path: Path, specials: tuple[int, int, int, int]) -> Tokenizer:
    """Return the tokenizer of a vocabulary: of characters if it has no longer tokens, else of words."""
    unk, pad, bos, eos = specials
    tokens = _listed(path)
    if outside := [id_ for id_ in specials if not 0 <= id_ < len(tokens)]:
        raise SettingsError(f"--specials: found {outside[0]}, expected an id of {path}, 0 to {len(tokens) - 1}")
    plain = [token for id_, token in enumerate(tokens) if id_ not in specials]
    library = LibraryTokenizer(
        models.WordLevel({token: id_ for id_, token in enumerate(tokens)}, unk_token=tokens[unk])
    )
    if all(len(token) == 1 for token in plain):
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = decoders.Fuse()
    else:
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([AddedToken(tokens[id_], special=True) for id_ in specials])
    ids = LibraryIds(json.loads(library.to_str()), len(tokens))
    return Tokenizer(Vocabulary.from_library(SpecialIds(pad=pad, bos=bos, eos=eos, unk=unk), ids, {}))


def _listed(path: Path) -> list[str]:
    """Return the tokens of a vocabulary in order of ids: a list in JSON, or an object of ids 0, 1, 2, …"""
    with refused(path, "cannot be read"):
        values = read_json(path, object)
    if isinstance(values, dict) and sorted(map(str, values.values())) == sorted(map(str, range(len(values)))):
        values = sorted(values, key=lambda token: int(values[token]))
    if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
        raise DataError(f"{path}: expected a list of tokens, or an object of tokens with their ids 0, 1, 2, …")
    if len(set(values)) != len(values):
        raise DataError(f"{path}: a token occurs twice")
    return values


@torch.no_grad()
def _compare(
    checkpoint: Checkpoint, path: Path, tensors: Mapping[str, Tensor], names: _Names, tables: Tables
) -> Certificate:
    """Compare log-probabilities with those of a plain forward in PyTorch, with the tensors of the file as they are."""
    settings, dtype = checkpoint.config.model, next(checkpoint.model.parameters()).dtype
    state = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    forward = (_annotated if names.annotated else _torch)(state, names, settings)
    forced, scale = forced_targets(checkpoint), math.sqrt(settings.width) if settings.scale_embeddings else 1.0
    places = [_position_table(state[name]) for name in tables.positions] or [_computed_positions(settings).to(dtype)]
    bias = state[tables.bias] if tables.bias else None
    log_probs = []
    for source, target, labels in forced.examples(checkpoint):
        read = state[tables.source][torch.from_numpy(source)] * scale + places[0][: source.shape[1]]
        given = state[tables.target][torch.from_numpy(target)] * scale + places[-1][: target.shape[1]]
        log_probs.append(label_log_probs(F.linear(forward(read, given), state[tables.output], bias), labels))
    return forced.compare(log_probs, "a plain forward in PyTorch", path)


def _computed_positions(settings: ModelSettings) -> Tensor:
    """Return the table of an encoding [L, D]."""
    table = encoding_class(settings.positions)(settings).table
    return torch.zeros(settings.max_positions, settings.width) if table is None else table


Forward = Callable[[Tensor, Tensor], Tensor]
"""From vectors of a source [1, S, D] and a target [1, T, D] to hidden states [1, T, D]."""


def _torch(state: Mapping[str, Tensor], names: _Names, settings: ModelSettings) -> Forward:
    sizes = (settings.width, settings.attention_heads, settings.encoder_layers, settings.decoder_layers)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor")
        theirs = nn.Transformer(
            *sizes, settings.feed_forward, dropout=0.0, activation=settings.activation, batch_first=True,
            layer_norm_eps=settings.norm_epsilon, norm_first=settings.norm == "pre",
            dtype=state[names.feed_forward].dtype,
        ).eval()  # fmt: skip
    if not settings.ends_normed:
        theirs.encoder.norm = theirs.decoder.norm = None
    inside = (f"{names.prefix}{side}.{part}" for side in ("encoder", "decoder") for part in ("layers.", "norm."))
    begins = tuple(inside)
    theirs.load_state_dict(
        {name.removeprefix(names.prefix): tensor for name, tensor in state.items() if name.startswith(begins)}
    )

    def forward(source: Tensor, target: Tensor) -> Tensor:
        later = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        hidden: Tensor = theirs(source, target, tgt_mask=later)
        return hidden

    return forward


def _annotated(state: Mapping[str, Tensor], names: _Names, settings: ModelSettings) -> Forward:
    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return state[f"{name}.a_2"] * centred / (x.std(-1, keepdim=True) + 1e-6) + state[f"{name}.b_2"]

    def attend(x: Tensor, memory: Tensor, name: str, *, causal: bool = False) -> Tensor:
        query, key, value = (
            linear(each, f"{name}.linears.{place}").view(*each.shape[:2], settings.attention_heads, -1).transpose(1, 2)
            for place, each in enumerate((x, memory, memory))
        )
        read = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return linear(read.transpose(1, 2).flatten(2), f"{name}.linears.3")

    def stack(side: str, x: Tensor, memory: Tensor | None) -> Tensor:
        for number in range(names.layers(side, state)):
            layer = f"{names.prefix}{side}.layers.{number}."
            inner = norm(x, f"{layer}sublayer.0.norm")
            x = x + attend(inner, inner, f"{layer}self_attn", causal=memory is not None)
            if memory is not None:
                x = x + attend(norm(x, f"{layer}sublayer.1.norm"), memory, f"{layer}src_attn")
            inner = norm(x, f"{layer}sublayer.{1 + (memory is not None)}.norm")
            x = x + linear(linear(inner, f"{layer}feed_forward.w_1").relu(), f"{layer}feed_forward.w_2")
        return norm(x, f"{names.prefix}{side}.norm")

    return lambda source, target: stack("decoder", target, stack("encoder", source, None))
