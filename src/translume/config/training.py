"""[training]: how the weights are made; kept as provenance, not needed to translate."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from translume.config.base import OneOf, Settings


class TrainingSettings(Settings):
    """[training]: maximum likelihood by Adam."""

    table: ClassVar[str] = "training"

    updates: int = Field(default=20_000, ge=1)
    """Steps of the optimiser, in all."""
    max_tokens: int = Field(default=4096, ge=1)
    """Most tokens in a batch, padding counted, of the longer side."""
    accumulate: int = Field(default=1, ge=1)
    """Batches whose gradients are summed for one update."""
    optimizer: Literal["adam", "adamw"] = "adamw"
    """Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019)."""
    learning_rate: float = Field(default=5e-4, gt=0.0)
    """The highest rate; for "noam" a factor on its formula."""
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = "inverse_sqrt"
    """How the rate falls after the warm-up."""
    warmup_updates: int = Field(default=4000, ge=0)
    """Updates over which the rate rises linearly from zero."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of Adam's first moment."""
    beta2: float = Field(default=0.98, ge=0.0, lt=1.0)
    """Decay of Adam's second moment."""
    epsilon: float = Field(default=1e-9, gt=0.0)
    """Added to the root of Adam's second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decay of matrices ("adamw": apart from the gradient); biases and norms never decay."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the target's probability spread evenly over other tokens (Szegedy et al. 2016)."""
    label_smoothing_over: Literal["all", "others", "text"] = "all"
    """Which: "all" of the vocabulary, the label too; the "others"; tokens of "text", which special ones are not."""
    z_loss: float = Field(default=0.0, ge=0.0)
    """Weight of the squared logarithm of the normaliser in the loss."""
    confidence_penalty: float = Field(default=0.0, ge=0.0)
    """Weight of the negative entropy in the loss (Pereyra et al. 2017)."""
    r_drop: float = Field(default=0.0, ge=0.0)
    """Weight of how far two passes with other dropout are apart (R-Drop, Wu et al. 2021); above 0 costs two passes."""
    teacher: str = ""
    """Folder of a model with the same tokens, to learn from its beliefs too (Kim and Rush 2016); empty for none."""
    teacher_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Weight λ of how far its beliefs are (KL divergence) in the loss; the rest of the loss has 1 − λ."""
    clip_norm: float = Field(default=1.0, ge=0.0)
    """Gradients are scaled down to this norm, per target token; 0 never clips."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """"auto" is bf16 where the hardware multiplies it fast, else fp32."""
    seed: int = Field(default=1, ge=0)
    """Of everything random."""
    validate_every: int = Field(default=500, ge=1)
    """Updates between validations."""
    validation_sentences: int = Field(default=500, ge=0)
    """Validation sentences that are translated for `metric`; 0 for all."""
    save_every: int = Field(default=500, ge=1)
    """Updates between commits of the model folder, and between candidates for averaging."""
    keep: int = Field(default=10, ge=1)
    """Candidates kept in `resume/` for averaging."""
    average_last: int = Field(default=1, ge=1)
    """The model is the mean of the last this many candidates, or the best by `metric` where it is better; 1: that."""
    log_every: int = Field(default=50, ge=1)
    """Updates between lines of `history.jsonl`."""
    ema: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of an exponential moving average of the weights, kept apart from the raw ones; 0 for none."""
    patience: int = Field(default=0, ge=0)
    """Stop after this many validations without a better `metric`; 0 never stops early."""
    metric: Annotated[str, AfterValidator(OneOf("translume.tasks:metric_names"))] = "nll"
    """What "best" means on the validation set; "nll", or a metric of the task."""

    @model_validator(mode="after")
    def _a_share_has_a_teacher(self) -> Self:
        usual = type(self).model_fields["teacher_share"].default
        if not self.teacher and self.teacher_share != usual:
            raise ValueError(
                f"teacher_share is {self.teacher_share} without a teacher, wanted teacher = a model folder"
            )
        return self
