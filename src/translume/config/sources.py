"""[data.source]: what the encoder reads, text or frames of numbers; one class for each kind."""

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, SerializeAsAny, model_validator

from translume.config.base import OfKind, as_tuple


class SourceKind(OfKind):
    """Settings common to all kinds of sources."""

    table: ClassVar[str] = "data.source"
    part: ClassVar[str] = "source"
    usual: ClassVar[str] = "text"

    reader: ClassVar[str] = ""
    """The class that reads the frames of a source, "module:Class"; empty for text, which a tokenizer reads."""
    embedding: ClassVar[str] = "translume.model.embedding:Embedding"
    """The class of the encoder's first layers: "module:Class"."""
    language_tags: ClassVar[tuple[str, ...]] = ("none",)
    """Values of `model.language_tags` that a model of such sources may have."""
    medium: ClassVar[str] = "text"
    """What a source is, in descriptions of a model: "speech to text"."""
    hub_task: ClassVar[str] = "translation"
    """The name on model hubs for the task of writing such sources as text."""

    @property
    def files(self) -> str:
        """What the files of sources are, such as "audio"; the kind, unless several kinds read such files."""
        return self.kind

    @property
    def window(self) -> int:
        """Number of frames that the encoder reads at a time, of a source that may be longer; 0: it reads all."""
        return 0

    def longest(self, max_positions: int) -> int:
        """Return the maximum length of a source, EOS included, for that of a target, `model.max_positions`."""
        return max_positions


class TextSettings(SourceKind):
    """[data] source = "text": the encoder reads the tokens of a text."""

    language_tags: ClassVar[tuple[str, ...]] = ("none", "source", "target")
    kind: Literal["text"] = "text"


class FrameSettings(SourceKind, ABC):
    """Settings common to sources of frames: arrays [L, F] of L frames with F numbers each."""

    rate: ClassVar[int] = 0
    """Frames in a second; 0 for those that are not in time."""
    convolutions: int = Field(default=2, ge=0, le=6)
    """Number of convolutions before the encoder; each halves the number of frames, so 2 leave a quarter."""
    channels: int = Field(default=0, ge=0, le=65_536)
    """Channels of these convolutions; 0: the width of the model, or 32 for images."""
    time_masks: int = Field(default=0, ge=0, le=1000)
    """SpecAugment (Park et al. 2019): number of stretches of frames that a source loses in training; 0: none."""
    time_mask_frames: int = Field(default=40, ge=1)
    """Maximum number of frames in such a stretch; it is also at most a fifth of the source."""
    value_masks: int = Field(default=0, ge=0, le=1000)
    """SpecAugment: number of ranges of values, such as frequencies, that a source loses in training; 0: none."""
    value_mask_size: int = Field(default=10, ge=1)
    """Maximum number of values in such a range; it is also at most a third of them."""
    speed: float = Field(default=0.0, ge=0.0, le=0.5)
    """Maximum share by which a source is made faster or slower in training, by interpolating between its frames."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of values F in a frame."""

    def within(self, *, seconds: float, pixels: int) -> Self:
        """Return the settings with lower limits of files, where they apply."""
        return self

    @property
    def stride(self) -> int:
        """Number of frames from one position of the encoder to the next."""
        return 1 << self.convolutions

    def positions_of(self, frames: int) -> int:
        """Return the number of positions that the encoder makes of so many frames."""
        return -(-frames // self.stride)


class FeatureSettings(FrameSettings):
    """[data] source = "features": the arrays [L, F] of .npy files, or the only arrays of .npz files, as they are."""

    reader: ClassVar[str] = "translume.sources.features:FeatureReader"
    embedding: ClassVar[str] = "translume.model.frames:FrameEmbedding"
    medium: ClassVar[str] = "features"
    hub_task: ClassVar[str] = "text2text-generation"
    kind: Literal["features"] = "features"
    values: int = Field(default=80, ge=1, le=1_048_576)
    """Number of values F in each frame."""

    @property
    def size(self) -> int:
        return self.values


class RecordingSettings(FrameSettings, ABC):
    """Settings common to sources that are recordings."""

    rate: ClassVar[int] = 100
    medium: ClassVar[str] = "speech"
    hub_task: ClassVar[str] = "automatic-speech-recognition"
    max_seconds: float

    @property
    def files(self) -> str:
        return "audio"

    def within(self, *, seconds: float, pixels: int) -> Self:
        return self.model_copy(update={"max_seconds": min(self.max_seconds, seconds)})


class AudioSettings(RecordingSettings):
    """[data] source = "audio": WAV, FLAC, Ogg and MP3; 100 frames a second of the sound as mono at 16 kHz."""

    reader: ClassVar[str] = "translume.sources.audio:AudioReader"
    embedding: ClassVar[str] = "translume.model.frames:FrameEmbedding"
    kind: Literal["audio"] = "audio"
    features: Literal["log_mel", "mfcc"] = "log_mel"
    """Values of a frame: log energies of mel bands, as Whisper's, or mel-frequency cepstral coefficients of them."""
    mels: int = Field(default=80, ge=1, le=128)
    """Number of mel bands between 0 and 8 kHz."""
    coefficients: int = Field(default=13, ge=1, le=128)
    """Number of cepstral coefficients for features "mfcc"; at most `mels`."""
    max_seconds: float = Field(default=60.0, gt=0.0, le=3600.0)
    """Maximum length of a recording in seconds; a longer one is refused before it is decoded."""

    @property
    def size(self) -> int:
        return self.mels if self.features == "log_mel" else self.coefficients

    @model_validator(mode="after")
    def _coefficients_come_from_bands(self) -> Self:
        if self.features == "mfcc" and self.coefficients > self.mels:
            raise ValueError(f"coefficients is {self.coefficients}, expected at most mels, {self.mels}")
        return self


class PretrainedSettings(RecordingSettings, ABC):
    """Settings common to recordings as imported models read them, whose convolutions are those of the model."""

    channels: Literal[0] = 0
    """Always 0: the convolutions have as many channels as the width of the model, or a multiple."""
    speed: float = Field(default=0.0, ge=0.0, le=0.0)
    """Always 0: recordings are not stretched."""


class WhisperSettings(PretrainedSettings):
    """[data] source = "whisper": recordings as models imported from Whisper read them (Radford et al. 2023).

    The encoder reads windows of a fixed length, filled up with silence; 100 frames a second, with one of two
    convolutions of stride 2.
    """

    reader: ClassVar[str] = "translume.sources.audio:WhisperReader"
    embedding: ClassVar[str] = "translume.model.frames:WhisperEmbedding"
    language_tags: ClassVar[tuple[str, ...]] = ("speech", "english_speech")
    kind: Literal["whisper"] = "whisper"
    mels: int = Field(default=80, ge=1, le=128)
    """Number of mel bands between 0 and 8 kHz."""
    positions: int = Field(default=1500, ge=1, le=65_536)
    """Number of positions of a window, of 20 ms each: 1500 are 30 seconds."""
    max_seconds: float = Field(default=7200.0, gt=0.0, le=86_400.0)
    """Maximum length of a recording in seconds; a longer one is refused before it is decoded."""
    convolutions: Literal[1] = 1
    """Number of convolutions that halve the number of frames."""

    @property
    def size(self) -> int:
        return self.mels

    @property
    def window(self) -> int:
        """Number of frames in a window."""
        return 2 * self.positions

    def longest(self, max_positions: int) -> int:
        return self.positions + 1  # there is no EOS


def convolved(frames: Any) -> Any:
    """Return the number of positions that the convolutions of a `WaveformSettings` make of frames, ints or tensors."""
    for size, stride in ((2, 1), (7, 3), (3, 2)):  # in frames, then in outputs of the convolution before
        frames = (frames - size) // stride + 1
    return frames


class WaveformSettings(PretrainedSettings):
    """[data] source = "waveform": samples at 16 kHz, as models imported from Moonshine read them.

    A frame is 64 samples; three convolutions make a position of every 6 frames, 24 ms (Jeffries et al. 2024).
    """

    rate: ClassVar[int] = 250
    shortest: ClassVar[int] = 14
    """Number of frames that a position reads."""
    reader: ClassVar[str] = "translume.sources.audio:WaveformReader"
    embedding: ClassVar[str] = "translume.model.frames:WaveformEmbedding"
    kind: Literal["waveform"] = "waveform"
    max_seconds: float = Field(default=60.0, gt=0.0, le=3600.0)
    """Maximum length of a recording in seconds; a longer one is refused before it is decoded."""
    convolutions: Literal[3] = 3
    """Number of convolutions."""

    @property
    def size(self) -> int:
        return 64

    @property
    def stride(self) -> int:
        return 6

    def positions_of(self, frames: int) -> int:
        count: int = convolved(frames)
        return max(0, count)

    def longest(self, max_positions: int) -> int:
        return self.positions_of(int(self.max_seconds * self.rate)) + 1  # there is no EOS


class PixelSettings(FrameSettings, ABC):
    """Settings common to sources that are images: PNG, JPEG and others that Pillow reads."""

    medium: ClassVar[str] = "image"
    hub_task: ClassVar[str] = "image-to-text"
    max_pixels: int = Field(default=50_000_000, ge=1)
    """Maximum number of pixels of an image; a larger one is refused before it is decoded."""

    @property
    def files(self) -> str:
        return "image"

    def within(self, *, seconds: float, pixels: int) -> Self:
        return self.model_copy(update={"max_pixels": min(self.max_pixels, pixels)})


class ImageSettings(PixelSettings):
    """[data] source = "image": PNG, JPEG and other images that Pillow reads; a frame is a column of pixels."""

    reader: ClassVar[str] = "translume.sources.image:ImageReader"
    embedding: ClassVar[str] = "translume.model.frames:ImageEmbedding"
    kind: Literal["image"] = "image"
    height: int = Field(default=32, ge=1, le=1024)
    """Height in pixels to which images are scaled; their width follows."""
    color: bool = False
    """Read red, green and blue instead of shades of grey."""
    shift: int = Field(default=0, ge=0, le=1024)
    """Maximum number of pixels by which an image is moved in training, in all directions."""

    @property
    def size(self) -> int:
        return self.height * (3 if self.color else 1)


class PatchSettings(PixelSettings):
    """[data] source = "patches": images as models imported from TrOCR read them (Li et al. 2021).

    An image is scaled to one size, whatever its shape, and cut into squares, the frames, row by row. The encoder reads
    them behind one or two learned vectors (Dosovitskiy et al. 2021, section 3.1).
    """

    reader: ClassVar[str] = "translume.sources.image:PatchReader"
    embedding: ClassVar[str] = "translume.model.frames:PatchEmbedding"
    kind: Literal["patches"] = "patches"
    height: int = Field(default=384, ge=1, le=4096)
    """Height in pixels to which images are scaled, a multiple of `patch`."""
    width: int = Field(default=384, ge=1, le=4096)
    """Width in pixels to which images are scaled, a multiple of `patch`."""
    patch: int = Field(default=16, ge=1, le=1024)
    """Height and width of a patch in pixels."""
    first: int = Field(default=1, ge=1, le=2)
    """Number of learned vectors before the patches: 1 in ViT, 2 in DeiT."""
    filter: Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"] = "bilinear"
    """Filter of Pillow by which images are scaled."""
    scale: float = Field(default=1 / 255, gt=0.0)
    """Factor of the pixels, which are from 0 to 255."""
    mean: Annotated[tuple[float, float, float], BeforeValidator(as_tuple)] = (0.5, 0.5, 0.5)
    """What is then subtracted from red, green and blue."""
    deviation: Annotated[
        tuple[Annotated[float, Field(gt=0.0)], Annotated[float, Field(gt=0.0)], Annotated[float, Field(gt=0.0)]],
        BeforeValidator(as_tuple),
    ] = (0.5, 0.5, 0.5)
    """What the results are divided by."""
    convolutions: Literal[0] = 0
    """Always 0: a linear map reads a patch."""
    channels: Literal[0] = 0
    """Always 0, as `convolutions`."""
    speed: float = Field(default=0.0, ge=0.0, le=0.0)
    """Always 0: all images have the same number of patches."""

    @property
    def size(self) -> int:
        return 3 * self.patch * self.patch

    @property
    def positions(self) -> int:
        """Number of positions of an image."""
        return self.first + (self.height // self.patch) * (self.width // self.patch)

    def positions_of(self, frames: int) -> int:
        return self.first + frames

    def longest(self, max_positions: int) -> int:
        return self.positions + 1  # there is no EOS

    @model_validator(mode="after")
    def _patches_fill_the_image(self) -> Self:
        if self.height % self.patch or self.width % self.patch:
            raise ValueError(
                f"patch is {self.patch}, expected a divisor of height {self.height} and width {self.width}"
            )
        return self


SOURCES: dict[str, type[SourceKind]] = {
    "text": TextSettings,
    "features": FeatureSettings,
    "image": ImageSettings,
    "patches": PatchSettings,
    "audio": AudioSettings,
    "whisper": WhisperSettings,
    "waveform": WaveformSettings,
}
"""The settings of every kind of source."""
SourceSettings = Annotated[SerializeAsAny[SourceKind], PlainValidator(SourceKind.choose)]
"""The settings of what the encoder reads, of the class of its `kind`; "audio" stands for {kind = "audio"}."""
