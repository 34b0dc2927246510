"""Convert Marian's model and decoder options to our settings; refuse unsupported ones by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from translume.errors import SettingsError, check_known

MODEL_OPTIONS = "special:model.yml"
"""The member of a weights file that holds the model's options."""
NORM_EPSILON = 1e-6
"""What Marian's Transformer adds to the variance in its LayerNorm."""
MAX_POSITIONS = 1024
"""Our maximum length for models with sinusoids, which have none in Marian."""

_ACTIVATIONS = ("relu", "swish", "gelu")
_SAME: dict[str, tuple[object, ...]] = {
    "type": ("transformer",), "right-left": (False,), "ulr": (False,), "layer-normalization": (False,),
    "input-types": ([], None, ["sequence", "sequence"]), "lemma-dependency": ("", None), "lemma-dim-emb": (0,),
    "transformer-no-projection": (False,), "transformer-rnn-projection": (False,), "transformer-pool": (False,),
    "transformer-tied-layers": ([], None), "transformer-attention-mask": ("default",), "alibi": (False,),
    "transformer-disable-position-embeddings": (False,), "transformer-postprocess-emb": ("d", "", None),
    "transformer-ffn-depth": (2,), "transformer-decoder-ffn-depth": (0, 2),
}  # fmt: skip
"""Options for which we have no setting, with the values that we compute; an absent option has the first one."""
_SILENT = frozenset({
    "models", "vocabs", "relative-paths", "cpu-threads", "devices", "workspace", "mini-batch", "maxi-batch",
    "maxi-batch-sort", "mini-batch-words", "max-length-crop", "quiet", "quiet-translation", "skip-cost", "log",
    "log-level", "gemm-precision", "gemm-type", "optimize", "version", "interpolate-env-vars", "seed", "input",
    "max-length", "alignment", "n-best", "word-scores", "ssplit-prefix-file", "ssplit-mode", "max-length-break",
    "mini-batch-fit", "data-threads", "precision", "output",
})  # fmt: skip
"""Options of a decoder that say how it runs, not what it writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a model, from its options.

    place: names the file in errors.  values: [model] settings.  source, target: numbers of rows in the vocabularies,
    without our BOS.  tied: as `model.head.tie`.  feed_forward: inner sizes of the encoder's and the decoder's
    feed-forward blocks.  ssru, output_bias: as in the options.
    """

    place: str
    values: Mapping[str, Any]
    source: int
    target: int
    tied: str
    feed_forward: tuple[int, int]
    ssru: bool
    output_bias: bool


def read_architecture(place: str, options: Mapping[str, Any]) -> Architecture:
    """Return the shape of a model. Raises SettingsError naming the first option that we cannot express.

    Marian's Transformer ignores transformer-train-position-embeddings, transformer-no-bias and transformer-no-affine:
    it has sinusoids, and expects every bias and every gain.
    """
    for name, accepted in _SAME.items():
        if name in options and options[name] not in accepted:
            raise SettingsError(f"{place}: {name}: found {options[name]!r}, expected {accepted[0]!r}")
    ssru = _mixing(place, options) == "ssru"
    activation = options.get("transformer-ffn-activation", "swish")
    check_known(f"{place}: transformer-ffn-activation", activation, _ACTIVATIONS)
    inner = _number(place, options, "transformer-dim-ffn")
    sizes = (inner, _number(place, options, "transformer-decoder-dim-ffn", 0) or inner)
    tied = _tied(place, options)
    vocabularies = options.get("dim-vocabs") or [0, 0]
    if not isinstance(vocabularies, list) or len(vocabularies) != 2:
        raise SettingsError(f"{place}: dim-vocabs: found {vocabularies!r}, expected two sizes, of source and target")
    source, target = (_number(place, {"dim-vocabs": size}, "dim-vocabs") for size in vocabularies)
    values = {
        "width": _number(place, options, "dim-emb"),
        "feed_forward": max(sizes),
        "encoder_layers": _number(place, options, "enc-depth"),
        "decoder_layers": _number(place, options, "dec-depth"),
        "decoder_mixing": "ssru" if ssru else "attention",
        "attention_heads": _number(place, options, "transformer-heads"),
        "dropout": float(options.get("transformer-dropout") or 0.0),
        "attention_dropout": float(options.get("transformer-dropout-attention") or 0.0),
        "activation_dropout": float(options.get("transformer-dropout-ffn") or 0.0),
        "norm": _norm(place, options),
        "norm_epsilon": NORM_EPSILON,
        "activation": activation,
        "positions": "marian",
        "max_positions": MAX_POSITIONS,
        "scale_embeddings": True,
        # The bias keeps our BOS, which Marian does not have, out of the distribution.
        "head": {"kind": "softmax", "tie": tied, "bias": True},
    }
    return Architecture(
        place=place,
        values=values,
        source=source,
        target=target,
        tied=tied,
        feed_forward=sizes,
        ssru=ssru,
        output_bias=not _switch(place, options, "output-omit-bias"),
    )


def _mixing(place: str, options: Mapping[str, Any]) -> str:
    mixing = options.get("transformer-decoder-autoreg", "self-attention")
    if mixing == "self-attention":
        return "attention"
    if mixing != "rnn":
        raise SettingsError(
            f"{place}: transformer-decoder-autoreg: found {mixing!r}, expected 'self-attention', or 'rnn' with "
            "dec-cell 'ssru'"
        )
    if options.get("dec-cell") != "ssru":
        raise SettingsError(f"{place}: dec-cell: found {options.get('dec-cell')!r}, expected 'ssru'")
    return "ssru"


def _norm(place: str, options: Mapping[str, Any]) -> str:
    """Return "post" or "pre". Dropout ("d") has a setting of its own."""
    names = ("transformer-preprocess", "transformer-postprocess", "transformer-postprocess-top")
    values = [str(options.get(name) or "") for name in names]
    match [value.replace("d", "") for value in values]:
        case ["", "an", ""]:
            return "post"
        case ["n", "a", "n"]:
            return "pre"
    shown = ", ".join(f"{name} {value!r}" for name, value in zip(names, values, strict=True))
    raise SettingsError(f"{place}: found {shown}, expected '', 'dan' and '', or 'n', 'da' and 'n'")


def _tied(place: str, options: Mapping[str, Any]) -> str:
    if _switch(place, options, "tied-embeddings-all"):
        return "all"
    target, source = _switch(place, options, "tied-embeddings"), _switch(place, options, "tied-embeddings-src")
    return "all" if target and source else "target" if target else "embeddings" if source else "none"


def _switch(place: str, options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise SettingsError(f"{place}: {name}: found {value!r}, expected true or false")
    return value


def _number(place: str, options: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = options.get(name, default)
    if type(value) is not int or value < 0:
        shown = "nothing" if value is None else repr(value)
        raise SettingsError(f"{place}: {name}: found {shown}, expected an integer")
    return value


def decoding_values(place: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return [decoding] settings for a decoder's options, and a line for each option that is left out."""
    decoding: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in options.items():
        if name in _SILENT or value is None:
            continue
        if name == "beam-size":
            beam = _number(place, options, name)
            decoding |= {"strategy": "greedy"} if beam == 1 else {"strategy": "beam", "beam": beam, "stop": "optimal"}
        elif name == "normalize":
            decoding["length_penalty"] = _real(place, options, name)
        elif name == "max-length-factor":
            factor = _real(place, options, name)
            if factor > 0:
                # Marian's limit is the factor times the source length, with the EOS of both.
                decoding |= {"max_length_ratio": factor, "max_length_extra": max(1, round(factor))}
        elif name == "allow-unk" or (name == "word-penalty" and not value):
            continue
        else:
            notes.append(f"{place}: {name}: {value!r} has no setting here and is left out")
    if not options.get("allow-unk"):
        notes.append(f"{place}: allow-unk: false has no setting here: a translation may have an unknown token")
    return decoding, notes


def _real(place: str, options: Mapping[str, Any], name: str) -> float:
    value = options[name]  # `normalize: true` is 1, `false` is 0
    if not isinstance(value, bool | int | float):
        raise SettingsError(f"{place}: {name}: found {value!r}, expected a number")
    return float(value)
