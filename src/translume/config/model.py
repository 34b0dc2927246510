"""[model]: the architecture; saved with the weights and never changed afterwards."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from translume.config.base import Options, OptionTables, Settings, as_tuple, part_name
from translume.config.heads import HeadSettings, SoftmaxSettings
from translume.errors import nearest

POSITIONS: dict[str, Any] = {
    "sinusoidal": "translume.model.positions:Sinusoidal",
    "marian": "translume.model.positions:MarianSinusoidal",
    "fairseq": "translume.model.positions:FairseqSinusoidal",
    "interleaved": "translume.model.positions:InterleavedSinusoidal",
    "learned": "translume.model.positions:Learned",
    "rotary": "translume.model.positions:Rotary",
    "relative": "translume.model.positions:RelativeBias",
    "none": "translume.model.positions:PositionEncoding",
}
"""The classes of position encodings."""
_OWN_POSITIONS = tuple(POSITIONS)
"""Without those that parts from outside add."""
_EVEN_WIDTH = frozenset({"sinusoidal", "marian", "fairseq", "interleaved"})
"""Position encodings for which `width` must be even; "rotary" needs an even width per head."""
_WITHOUT_GLOBAL = {"global_tokens": "relative", "global_block": "rotary"}
"""Our position encoding that says nothing about the distance to what all tokens read."""
_READERS = {
    "rotary_base": "rotary", "rotary_scale": "rotary", "rotary_local_base": "rotary", "rotary_width": "rotary",
    "relative_buckets": "relative", "relative_max_distance": "relative", "relative_per_layer": "relative",
}  # fmt: skip
"""The position encoding that alone reads a setting."""
NORMS: dict[str, Any] = {"layer": "translume.model.layers:layer_norm", "rms": "translume.model.layers:rms_norm"}
"""Functions from [model] to a norm over the last dimension, of size `width`."""
FEED_FORWARDS: dict[str, Any] = {"dense": "translume.model.feed_forward:FeedForward"}
"""Functions from [model] to the module of a feed-forward block, from [..., D] to the same shape."""
ATTENTIONS: dict[str, Any] = {"softmax": "translume.model.attention:attend"}
"""Functions that mix values by queries and keys, as `attend` does, or classes of such modules, built from [model]."""

LanguageTags = Literal["none", "source", "target", "speech", "english_speech"]
"""Where a model reads the tags of its languages."""
GATED = frozenset({"swiglu", "geglu"})
"""Activations of feed-forward blocks with a gate: act(x W) ⊙ (x V) (Shazeer 2020)."""
MODERN = (
    "encoder", "key_value_heads", "query_key_norm", "attention_cap", "attention_windows", "global_tokens",
    "global_block", "window_ahead", "relative_per_layer", "rotary_base", "rotary_scale", "rotary_local_base",
    "rotary_width", "late_positions", "final_transform", "attention", "feed_forward_kind", "experts", "image_end_id",
    "shared_layers",
)  # fmt: skip
"""Settings that a format, the kernels or a search on a GPU have only if they say so; by default they do nothing."""
ENCODER = (
    "width", "feed_forward", "attention_heads", "head_width", "key_value_heads", "norm", "norm_epsilon", "activation",
    "embedding_norm", "attention_windows", "global_tokens", "global_block", "experts", "max_positions", "shared_layers",
)  # fmt: skip
"""Settings that `model.encoder` may change."""


class ModelSettings(Settings):
    """[model]: the encoder-decoder Transformer of Vaswani et al. (2017) and its variants."""

    table: ClassVar[str] = "model"

    width: int = Field(default=256, ge=1, le=65_536)
    """Size D of hidden states and embeddings."""
    feed_forward: int = Field(default=1024, ge=1, le=1_048_576)
    """Size of the hidden layer of feed-forward blocks."""
    experts: Annotated[tuple[Annotated[int, Field(ge=0, le=4096)], ...], BeforeValidator(as_tuple)] = ()
    """Numbers of experts of the layers in turn: with [0, 8] every second layer has a mixture of 8 feed-forward blocks.

    A router chooses the experts of each token (Shazeer et al. 2017; Fedus et al. 2021), so the model has more weights
    and little more work. 0: one block for all tokens.
    """
    experts_per_token: int = Field(default=1, ge=1, le=4096)
    """Number of experts that read a token: 1 as in Switch Transformers, 2 as in GShard and NLLB-MoE."""
    expert_capacity_factor: float = Field(default=1.25, ge=0.0)
    """In training, an expert reads at most so many times its even share of the choices of a batch; 0: no limit.

    Other tokens pass it unchanged; the log shows how many. There is no limit after training.
    """
    expert_balance: float = Field(default=0.01, ge=0.0)
    """Weight of the load-balance loss of Fedus et al. (2021, eq. 4), which keeps the router from few experts."""
    expert_capacity: int = Field(default=0, ge=0)
    """Tokens of a source that an expert of the encoder reads, also after training, as in Switch models; 0: all."""
    encoder_layers: int = Field(default=3, ge=0, le=1000)
    """Number of encoder layers."""
    decoder_layers: int = Field(default=3, ge=1, le=1000)
    """Number of decoder layers."""
    shared_layers: bool = False
    """All layers of the encoder have the same weights, and so have those of the decoder.

    As in the Universal Transformer (Dehghani et al. 2019) and ALBERT (Lan et al. 2020). The model has fewer weights and
    takes the same time.
    """
    decoder_mixing: Literal["attention", "ssru", "merged"] = "attention"
    """How decoder layers read the target so far: masked self-attention, or the SSRU of Kim et al. (2019).

    The "simpler simple recurrent unit" has half the weights and a state of one vector, so the cost of a step does not
    grow with the target. Other toolkits cannot load such a model. "merged": one attention with one softmax reads the
    target so far and the source, instead of self- and cross-attention, as in T5Gemma 2.
    """
    attention_heads: int = Field(default=4, ge=1)
    """Number of attention heads; must divide `width`, unless `head_width` is set."""
    head_width: int = Field(default=0, ge=0, le=65_536)
    """Size of the queries, keys and values of an attention head; 0: `width` divided by `attention_heads`."""
    key_value_heads: int = Field(default=0, ge=0)
    """Number of heads of keys and values, each read by as many queries (Ainslie et al. 2023); 0: `attention_heads`."""
    query_key_norm: bool = False
    """Normalise the queries and keys of each head by RMSNorm (Henry et al. 2020)."""
    attention_cap: float = Field(default=0.0, ge=0.0)
    """Limit attention scores to ±c by c·tanh(score / c), as in Gemma 2; 0: no limit."""
    attention_windows: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(as_tuple)] = ()
    """Windows of self-attention of the layers in turn: with n, a token reads those less than n away; 0 reads all."""
    global_tokens: int = Field(default=0, ge=0)
    """Of an encoder with windows: the first so many tokens of a source read all and are read by all, as in Longformer.

    They read by maps of their own (Beltagy et al. 2020). 1 is the convention of LED for summaries.
    """
    global_block: int = Field(default=0, ge=0)
    """Of an encoder with windows: a token also reads the normalised sums of blocks of so many tokens, as in LongT5.

    They are called transient global (Guo et al. 2022); tokens after the last whole block belong to it. 0: none.
    """
    window_ahead: int = Field(default=0, ge=0, le=1_048_576)
    """With `attention_windows`: so many more positions after a token than before it, which only an encoder reads."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and on the output of every sub-layer."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout inside feed-forward blocks."""
    final_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on the output of the encoder and of the decoder, as in T5."""
    norm: Literal["pre", "post", "both"] = "pre"
    """Normalise before each sub-layer ("pre", with a final norm), after its residual sum ("post"), or before and after
    the sub-layer, with a final norm ("both", as in Gemma 2)."""
    final_norm: bool = False
    """With norm "post": normalise the output of the encoder and of the decoder too, as torch.nn.Transformer does."""
    attention: Annotated[str, AfterValidator(part_name("attention"))] = "softmax"
    """How values are mixed by queries and keys: "softmax", or a part from outside."""
    feed_forward_kind: Annotated[str, AfterValidator(part_name("feed_forward"))] = "dense"
    """The feed-forward block: "dense", or a part from outside."""
    normalization: Annotated[str, AfterValidator(part_name("norm"))] = "layer"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0)
    """Added to the variance in every norm, for numerical stability."""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish", "swiglu", "geglu"] = "relu"
    """Activation of the feed-forward blocks; "swiglu" and "geglu" are gated (Shazeer 2020) and have a third matrix.

    "gelu_tanh" and "geglu" approximate GELU by a hyperbolic tangent, as GPT-2 and T5 v1.1 do.
    """
    positions: Annotated[str, AfterValidator(part_name("position"))] = "sinusoidal"
    """The position encoding: "sinusoidal" or "learned" vectors added to embeddings; "rotary", which rotates queries and
    keys (Su et al. 2021); "relative", learned biases on attention scores by distance (Raffel et al. 2020); or "none".

    "interleaved" is "sinusoidal" with each sine beside its cosine, as in PyTorch's tutorial, OpenNMT-py and JoeyNMT.
    "marian" is "sinusoidal" with the slightly longer wavelengths of models trained with Marian; "fairseq" has these
    wavelengths too, and its first position is 2, as in M2M-100 and NLLB.
    """
    relative_buckets: int = Field(default=32, ge=4, le=65_536)
    """For positions "relative": number of ranges of distances with a bias of their own."""
    relative_max_distance: int = Field(default=128, ge=2, le=1_048_576)
    """For positions "relative": distances from here on share the last bias; more than half of `relative_buckets`."""
    relative_per_layer: bool = False
    """For positions "relative": biases of each layer instead of each stack, as in UMT5."""
    rotary_base: float = Field(default=10_000.0, gt=1.0)
    """For positions "rotary": the base θ of the wavelengths."""
    rotary_scale: float = Field(default=1.0, gt=0.0)
    """For positions "rotary": positions are divided by this, for texts longer than those of the training."""
    rotary_local_base: float = Field(default=0.0, ge=0.0)
    """For positions "rotary": the base of layers with a window, whose positions are not divided; 0: as the others."""
    rotary_width: int = Field(default=0, ge=0, le=65_536)
    """For positions "rotary": how many components of a head are rotated, in pairs half a head apart; 0: all."""
    max_positions: int = Field(default=1024, ge=1, le=1_048_576)
    """Maximum length of a source or target in tokens, EOS included."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of `width`."""
    embedding_norm: bool = False
    """Normalise embeddings, positions included, before the first layer, as BART does (Lewis et al. 2020)."""
    image_end_id: int = Field(default=-1, ge=-1)
    """Id of a token that has a vector of its own as an input, which the head does not share; -1: none.

    The end of an image in T5Gemma 2. Training does not change the vector.
    """
    late_positions: bool = False
    """With `embedding_norm`: the decoder adds positions after the norm, as in BlenderBot-small."""
    final_transform: bool = False
    """A linear map, GELU and a norm between decoder and head, as in BERT (Devlin et al. 2019)."""
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
    encoder: dict[str, Any] = Field(default_factory=dict)
    """Settings in which the encoder differs, such as {norm = "post"}: sizes, norms, activation, windows, positions."""
    head: HeadSettings = SoftmaxSettings.model_construct()
    options: OptionTables = Field(default_factory=Options)
    """Settings of parts from outside, a table for each."""

    @property
    def of_encoder(self) -> "ModelSettings":
        """The settings of the encoder's layers."""
        return self.model_copy(update={**self.encoder, "encoder": {}}) if self.encoder else self

    @property
    def positions_of_sides(self) -> tuple[int, int]:
        """`max_positions` of the encoder and of the decoder."""
        return self.of_encoder.max_positions, self.max_positions

    @property
    def ends_normed(self) -> bool:
        """Whether the output of the encoder and of the decoder is normalised."""
        return self.norm != "post" or self.final_norm

    @property
    def size_per_head(self) -> int:
        """Size d of the queries, keys and values of an attention head."""
        return self.head_width or self.width // self.attention_heads

    @property
    def attention_width(self) -> int:
        """Size H·d of the queries of all attention heads."""
        return self.attention_heads * self.size_per_head

    @property
    def key_value_width(self) -> int:
        """Size of the keys of all heads of keys and values, and of the values."""
        return (self.key_value_heads or self.attention_heads) * self.size_per_head

    def window(self, layer: int) -> int:
        """Return the window of self-attention of a layer; 0 if it reads all."""
        return self.attention_windows[layer % len(self.attention_windows)] if self.attention_windows else 0

    def experts_of(self, layer: int) -> int:
        """Return the number of experts of a layer; 0 if one feed-forward block reads all tokens."""
        return self.experts[layer % len(self.experts)] if self.experts else 0

    def modern(self) -> list[str]:
        """Return the names of the settings of `MODERN` that do something, and of those that name other parts."""
        names = [name for name in MODERN if getattr(self, name) != self.usual(name)]
        names += ["decoder_mixing"] if self.decoder_mixing == "merged" else []
        return names if self.normalization in ("layer", "rms") else [*names, "normalization"]

    @classmethod
    def usual(cls, name: str) -> Any:
        """Return the default of a setting."""
        return cls.model_fields[name].get_default(call_default_factory=True)

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
        if self.key_value_heads and self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"attention_heads {self.attention_heads} is not divisible by key_value_heads {self.key_value_heads}"
            )
        return self

    @model_validator(mode="after")
    def _layers_can_be_shared(self) -> Self:
        for name in ("attention_windows", "experts") if self.shared_layers else ():
            if len(set(getattr(self, name))) > 1:
                raise ValueError(f"{name} is {list(getattr(self, name))} with shared_layers, expected one value")
        return self

    @model_validator(mode="after")
    def _merged_attention_is_possible(self) -> Self:
        for name in ("attention", "experts") if self.decoder_mixing == "merged" else ():
            if getattr(self, name) != self.usual(name):
                raise ValueError(f"{name} is {getattr(self, name)!r} with decoder_mixing 'merged', expected none")
        return self

    @model_validator(mode="after")
    def _experts_suffice(self) -> Self:
        for count in self.experts:
            if 0 < count < self.experts_per_token:
                raise ValueError(f"experts_per_token is {self.experts_per_token}, expected at most {count}, as experts")
        return self

    @field_validator("encoder")
    @classmethod
    def _encoder_settings_are_known(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if name not in ENCODER:
                raise ValueError(f"found {name!r}{nearest(name, ENCODER)}")
        return values

    @model_validator(mode="after")
    def _encoder_is_possible(self) -> Self:
        if self.encoder:
            own = {name: getattr(self, name) for name in type(self).model_fields if name != "encoder"}
            whole = type(self).model_validate({**own, **self.encoder})
            self.encoder.update({name: getattr(whole, name) for name in self.encoder})
            if whole.width != self.width and self.decoder_mixing == "merged":
                raise ValueError(
                    f"encoder.width is {whole.width} with decoder_mixing 'merged', expected {self.width}, that of the "
                    "decoder"
                )
            if whole.width != self.width and (self.head.reads_source or self.head.tie in ("all", "embeddings")):
                raise ValueError(
                    f"encoder.width is {whole.width}, expected {self.width}, that of the decoder, with head.tie "
                    f"'{self.head.tie}'"
                )
        return self

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        if self.positions == "rotary" and self.size_per_head % 2:
            raise ValueError(f"rotary positions need an even width per head, found {self.size_per_head}")
        if self.rotary_width % 2 or self.rotary_width > self.size_per_head:
            raise ValueError(
                f"rotary_width is {self.rotary_width}, expected an even number up to {self.size_per_head}, the width "
                "of a head"
            )
        if self.positions in _EVEN_WIDTH and self.width % 2:
            raise ValueError(f"{self.positions} positions need an even width, found {self.width}")
        for setting, reader in _READERS.items():
            if reader != self.positions and getattr(self, setting) != self.usual(setting):
                raise ValueError(f"{setting} is set with positions '{self.positions}', expected '{reader}'")
        if self.relative_max_distance <= self.relative_buckets // 2:
            raise ValueError(
                f"relative_max_distance is {self.relative_max_distance}, expected more than half of "
                f"relative_buckets, {self.relative_buckets // 2}"
            )
        return self

    @model_validator(mode="after")
    def _global_reading_is_possible(self) -> Self:
        for setting, without in _WITHOUT_GLOBAL.items():
            count = getattr(self, setting)
            if count and (not self.attention_windows or 0 in self.attention_windows):
                raise ValueError(
                    f"{setting} is {count} with attention_windows {list(self.attention_windows)}, expected windows "
                    "above 0 in all layers"
                )
            if count and (self.positions == without or self.positions not in _OWN_POSITIONS):
                others = [name for name in _OWN_POSITIONS if name != without]
                raise ValueError(f"{setting} is set with positions '{self.positions}', expected {', '.join(others)}")
        if self.global_tokens and self.global_block:
            raise ValueError("global_tokens and global_block are both set, expected one of them")
        return self

    @model_validator(mode="after")
    def _final_norm_has_an_effect(self) -> Self:
        if self.final_norm and self.norm == "pre":
            raise ValueError("final_norm has no effect with norm 'pre', which has one; expected norm 'post'")
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
