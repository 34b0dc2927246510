"""[model]: the architecture; saved with the weights and never changed afterwards."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from translume.config.base import Settings
from translume.config.heads import HeadSettings, SoftmaxSettings
from translume.errors import nearest


@dataclass(frozen=True, slots=True)
class Positions:
    """Properties of a position encoding that validation needs; everything else is in its class.

    implementation: "module:Class".  even: the size that must be even: "width", or "head" for that of an attention head.
    settings: names of the settings that only this encoding reads.
    """

    implementation: str
    even: Literal["", "width", "head"] = ""
    settings: tuple[str, ...] = ()


POSITIONS = {
    "sinusoidal": Positions("translume.model.positions:Sinusoidal", even="width"),
    "marian": Positions("translume.model.positions:MarianSinusoidal", even="width"),
    "fairseq": Positions("translume.model.positions:FairseqSinusoidal", even="width"),
    "interleaved": Positions("translume.model.positions:InterleavedSinusoidal", even="width"),
    "learned": Positions("translume.model.positions:Learned"),
    "rotary": Positions("translume.model.positions:Rotary", even="head"),
    "relative": Positions(
        "translume.model.positions:RelativeBias", settings=("relative_buckets", "relative_max_distance")
    ),
    "none": Positions("translume.model.positions:PositionEncoding"),
}
"""The position encodings by name; a new one is a module in `model.positions` and a line here."""


LanguageTags = Literal["none", "source", "target", "speech", "english_speech"]
"""Where a model reads the tags of its languages."""
GATED = frozenset({"swiglu", "geglu"})
"""Activations of feed-forward blocks with a gate: act(x W) ⊙ (x V) (Shazeer 2020)."""


class ModelSettings(Settings):
    """[model]: the encoder-decoder Transformer of Vaswani et al. (2017) and its variants."""

    table: ClassVar[str] = "model"

    width: int = Field(default=256, ge=1, le=65_536)
    """Size D of hidden states and embeddings."""
    feed_forward: int = Field(default=1024, ge=1, le=1_048_576)
    """Size of the hidden layer of feed-forward blocks."""
    encoder_layers: int = Field(default=3, ge=0, le=1000)
    """Number of encoder layers."""
    decoder_layers: int = Field(default=3, ge=1, le=1000)
    """Number of decoder layers."""
    decoder_mixing: Literal["attention", "ssru"] = "attention"
    """How decoder layers read the target so far: masked self-attention, or the SSRU of Kim et al. (2019).

    The "simpler simple recurrent unit" has half the weights and a state of one vector, so the cost of a step does not
    grow with the target. Other toolkits cannot load such a model.
    """
    attention_heads: int = Field(default=4, ge=1)
    """Number of attention heads; must divide `width`, unless `head_width` is set."""
    head_width: int = Field(default=0, ge=0, le=65_536)
    """Size of the queries, keys and values of an attention head; 0: `width` divided by `attention_heads`."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and on the output of every sub-layer."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout inside feed-forward blocks."""
    final_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the output of the encoder and of the decoder, as in T5."""
    norm: Literal["pre", "post"] = "pre"
    """Normalise before each sub-layer ("pre", with a final norm) or after its residual sum ("post")."""
    normalization: Literal["layer", "rms"] = "layer"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0)
    """Added to the variance in every norm, for numerical stability."""
    activation: Literal["relu", "gelu", "swish", "swiglu", "geglu"] = "relu"
    """Activation of the feed-forward blocks; "swiglu" and "geglu" are gated (Shazeer 2020) and have a third matrix.

    "geglu" approximates GELU by a hyperbolic tangent, as T5 v1.1 does.
    """
    positions: str = "sinusoidal"
    """The position encoding: "sinusoidal" or "learned" vectors added to embeddings; "rotary", which rotates queries and
    keys (Su et al. 2021); "relative", learned biases on attention scores by distance (Raffel et al. 2020); or "none".

    "marian" is "sinusoidal" with the slightly longer wavelengths of models trained with Marian; "fairseq" has these
    wavelengths too, and its first position is 2, as in M2M-100 and NLLB. "interleaved" is "sinusoidal" with each cosine
    beside its sine, as in OpenNMT-py and JoeyNMT.
    """
    relative_buckets: int = Field(default=32, ge=4, le=65_536)
    """For positions "relative": number of ranges of distances with a bias of their own."""
    relative_max_distance: int = Field(default=128, ge=2, le=1_048_576)
    """For positions "relative": distances from here on share the last bias; more than half of `relative_buckets`."""
    max_positions: int = Field(default=1024, ge=1, le=1_048_576)
    """Maximum length of a source or target in tokens, EOS included."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of `width`."""
    embedding_norm: bool = False
    """Normalise embeddings, positions included, before the first layer, as BART does (Lewis et al. 2020)."""
    bias: bool = True
    """Biases in linear maps and in LayerNorm."""
    language_tags: LanguageTags = "none"
    """Where a model of several languages reads its tags, special tokens of the vocabulary that name a language.

    "source": the tag of the target's language begins the source (Johnson et al. 2017). "target": the tag of its own
    language begins the source, and that of the target's language is the decoder's first token after BOS (Fan
    et al. 2021), as in M2M-100, NLLB-200 and mBART-50. "speech": the decoder's first tokens after BOS are
    the tag of the language of a recording, that of the task, and one that says that no times follow; "english_speech":
    only the last (Radford et al. 2023). No tag is predicted, and none counts in a loss or a score.
    """
    segments: int = Field(default=0, ge=0)
    """Number of segments of a source, such as a sentence and its context, that get a segment embedding; 0 for none.

    A token's segment is the number of tokens with `segment_separator` before it, at most `segments` − 1.
    """
    segment_separator: str = "|"
    """The character that ends a segment. It does so everywhere, so choose one that does not occur in the text."""
    segment_pooling: Literal["none", "sum"] = "none"
    """Read a segment as one vector, the sum of its tokens' embeddings, instead of token by token.

    Each embedding is first multiplied by a learned vector of its place in the segment (Dehghani et al. 2019, section
    3.1); tokens after the 32nd share the last one. For stories of many short sentences: the encoder has few positions,
    and each says a whole sentence. Tokens of the source can then be neither copied nor aligned. `segments` limits the
    number of embeddings, not that of positions.
    """
    pretrained_source: str = ""
    """File of word vectors (word2vec or GloVe text format) for the source embedding; read once, when training starts.

    Each vector has `width` numbers. Tokens of the vocabulary are looked up with and without their word-start mark, then
    in lower case; tokens that are not found are initialised at random. Best with tokenizer.kind = "word".
    """
    pretrained_target: str = ""
    """The same for the target embedding."""
    freeze_pretrained: bool = False
    """Do not train embeddings initialised from word vectors, nor a head tied to them."""
    head: HeadSettings = SoftmaxSettings()

    @property
    def size_per_head(self) -> int:
        """Size d of the queries, keys and values of an attention head."""
        return self.head_width or self.width // self.attention_heads

    @property
    def attention_width(self) -> int:
        """Size H·d of the queries, keys and values of all attention heads."""
        return self.attention_heads * self.size_per_head

    @property
    def source_tags(self) -> int:
        """Number of tags before the tokens of a source."""
        return int(self.language_tags in ("source", "target"))

    @property
    def target_tags(self) -> int:
        """Number of tags between BOS and the tokens of a target."""
        return {"target": 1, "speech": 3, "english_speech": 1}.get(self.language_tags, 0)

    @model_validator(mode="after")
    def _attention_heads_divide_width(self) -> Self:
        if self.head_width and self.decoder_mixing == "ssru" and self.attention_width != self.width:
            raise ValueError(f"head_width is {self.head_width} with decoder_mixing 'ssru', expected 0")
        if self.width % self.attention_heads and not self.head_width:
            raise ValueError(f"width {self.width} is not divisible by attention_heads {self.attention_heads}")
        return self

    @field_validator("positions")
    @classmethod
    def _positions_are_known(cls, name: str) -> str:
        if name not in POSITIONS:
            raise ValueError(f"found {name!r}{nearest(name, POSITIONS)}")
        return name

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        encoding, head_width = POSITIONS[self.positions], self.size_per_head
        if encoding.even == "head" and head_width % 2:
            raise ValueError(f"{self.positions} positions need an even width per head, found {head_width}")
        if encoding.even == "width" and self.width % 2:
            raise ValueError(f"{self.positions} positions need an even width, found {self.width}")
        for name, other in ((name, other) for name, other in POSITIONS.items() if name != self.positions):
            for setting in other.settings:
                if getattr(self, setting) != type(self).model_fields[setting].default:
                    raise ValueError(f"{setting} is set with positions '{self.positions}', expected '{name}'")
        if self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance is {self.relative_max_distance}, expected more than half of "
                f"relative_buckets, {self.relative_buckets // 2}"
            )
        return self

    @model_validator(mode="after")
    def _pooling_has_segments(self) -> Self:
        if self.segment_pooling != "none" and not self.segments:
            raise ValueError(f"segment_pooling is '{self.segment_pooling}' with segments 0, expected 1 or more")
        return self

    @model_validator(mode="after")
    def _separator_is_one_character(self) -> Self:
        if self.segments and (len(self.segment_separator) != 1 or self.segment_separator.isspace()):
            raise ValueError(f"segment_separator is {self.segment_separator!r}, expected one character, no space")
        return self
