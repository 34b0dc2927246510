"""[model]: what the weights mean; saved with them and never changed afterwards."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from translume.config.base import Settings
from translume.config.heads import HeadSettings, SoftmaxSettings


class ModelSettings(Settings):
    """[model]: the encoder-decoder Transformer of Vaswani et al. (2017) and its variants."""

    table: ClassVar[str] = "model"

    width: int = Field(default=256, ge=1, le=65_536)
    """Size of hidden states and embeddings, D."""
    feed_forward: int = Field(default=1024, ge=1, le=1_048_576)
    """Size of the hidden layer of feed-forward blocks."""
    encoder_layers: int = Field(default=3, ge=0, le=1000)
    """Layers that read the source."""
    decoder_layers: int = Field(default=3, ge=1, le=1000)
    """Layers that write the target."""
    decoder_mixing: Literal["attention", "ssru"] = "attention"
    """How decoder layers read the target so far: masked self-attention, or the SSRU of Kim et al. (2019).

    The "simpler simple recurrent unit" has half the weights and one vector as memory: a step's cost does not grow with
    the target. Other toolkits cannot read such a model.
    """
    attention_heads: int = Field(default=4, ge=1)
    """Attention heads of every attention; must divide `width`."""
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Dropout on embeddings and on the output of every sub-layer."""
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout on attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout inside feed-forward blocks."""
    norm: Literal["pre", "post"] = "pre"
    """Normalise before each sub-layer (with a final norm) or after its residual sum."""
    normalization: Literal["layer", "rms"] = "layer"
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    norm_epsilon: float = Field(default=1e-5, gt=0.0)
    """Added to the variance in every norm."""
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    """Of the feed-forward blocks; "swiglu" is gated (Shazeer 2020) and has a third matrix."""
    positions: Literal["sinusoidal", "marian", "learned", "rotary", "none"] = "sinusoidal"
    """How positions are known: added sinusoids, added learned vectors, rotated queries and keys (Su et al. 2021).

    "marian" is for models trained by Marian, whose sinusoids have slightly longer wavelengths.
    """
    max_positions: int = Field(default=1024, ge=1, le=1_048_576)
    """Longest source or target in tokens, end mark included."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of `width`."""
    bias: bool = True
    """Biases in linear maps and in LayerNorm."""
    segments: int = Field(default=0, ge=0)
    """Number of source segments with an embedding of their own, such as a sentence and its context; 0 for none.

    A token's segment is the number of tokens with `segment_separator` before it, at most `segments` − 1.
    """
    segment_separator: str = "|"
    """The character that ends a segment in a source; wherever it stands, so choose one that text does not hold."""
    pretrained_source: str = ""
    """Word vectors for the source embedding in word2vec or GloVe text form; read once, when training begins.

    They have `width` numbers each and are matched with the tokens of the vocabulary: whole words, with or without the
    mark of a word's beginning, then in lower case. Other tokens begin as without. Best with tokenizer.kind = "word".
    """
    pretrained_target: str = ""
    """Word vectors for the target embedding."""
    freeze_pretrained: bool = False
    """Keep embeddings that came from word vectors as they are, without weight decay; a tied head keeps them too."""
    head: HeadSettings = SoftmaxSettings()

    @model_validator(mode="after")
    def _attention_heads_divide_width(self) -> Self:
        if self.width % self.attention_heads:
            raise ValueError(f"width {self.width} is not divisible by attention_heads {self.attention_heads}")
        if self.positions == "rotary" and self.width // self.attention_heads % 2:
            raise ValueError(
                f"rotary positions need an even width per head, found {self.width // self.attention_heads}"
            )
        if self.positions in ("sinusoidal", "marian") and self.width % 2:
            raise ValueError(f"sinusoidal positions need an even width, found {self.width}")
        return self

    @model_validator(mode="after")
    def _one_character_separates_segments(self) -> Self:
        if self.segments and (len(self.segment_separator) != 1 or self.segment_separator.isspace()):
            raise ValueError(f"segment_separator is {self.segment_separator!r}, wanted one character, no space")
        return self
