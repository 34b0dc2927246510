"""[training]: the training recipe. Stored with the model as provenance; not needed to translate."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from translume.config.base import OneOf, Options, OptionTables, Settings, as_tuple, part_name
from translume.errors import closest

CPU_TOKENS = 4096
"""The value of `max_tokens = "auto"` on a CPU."""

LoraTarget = Literal["query", "key", "value", "output", "feed_forward", "recurrence"]
"""Linear maps that low-rank adapters can adapt."""
LoraTargets = Annotated[tuple[LoraTarget, ...], BeforeValidator(as_tuple), Field(min_length=1)]


OBJECTIVES: dict[str, Any] = {"likelihood": "translume.model.head:likelihood"}
"""Functions from [training] to an `Objective` of `model.head`, or None for the loss of the head itself."""
OPTIMIZERS: dict[str, Any] = {
    "adam": "torch.optim:Adam",
    "adamw": "torch.optim:AdamW",
    "muon": "translume.training.muon:Muon",
}
"""Ours, and functions from groups of parameters and [training] to an optimiser of torch."""
SCHEDULES: dict[str, Any] = {
    "inverse_sqrt": "translume.training.optimisation:inverse_sqrt",
    "noam": "translume.training.optimisation:noam",
    "cosine": "translume.training.optimisation:cosine",
    "constant": "translume.training.optimisation:constant",
}
"""Functions from an update, counted from 1, [training] and the width of the network to its learning rate."""


@dataclass(frozen=True, slots=True)
class _OrAuto:
    """A validator that allows "auto" and the values of one other type: Booleans, or integers of at least 1."""

    kind: type[int]
    expected: str

    def __call__(self, value: Any) -> Any:
        if value == "auto" or (type(value) is self.kind and (self.kind is bool or value >= 1)):
            return value
        close = isinstance(value, str) and closest(value, ["auto"])
        raise ValueError(f"found {value!r}" + ("; did you mean 'auto'?" if close else f", expected {self.expected}"))


AutoOrCount = Annotated[int | Literal["auto"], BeforeValidator(_OrAuto(int, "'auto' or an integer of at least 1"))]
AutoOrBool = Annotated[bool | Literal["auto"], BeforeValidator(_OrAuto(bool, "'auto', true or false"))]


class TrainingSettings(Settings):
    """[training]: maximum likelihood by Adam or Muon."""

    table: ClassVar[str] = "training"

    updates: int = Field(default=20_000, ge=1)
    """Total number of optimiser steps."""
    max_tokens: AutoOrCount = 4096
    """Maximum tokens of the longer side in a batch, padding included.

    "auto" takes what fits in the free memory of a GPU when the training begins, from 1,024 to 65,536, and 4,096 on a
    CPU. The number is stored with the run.
    """
    accumulate: int = Field(default=1, ge=1)
    """Number of batches whose gradients are summed for one update."""
    objective: Annotated[str, AfterValidator(part_name("objective"))] = "likelihood"
    """What the head's loss is: "likelihood", that of the labels, or a part from outside."""
    optimizer: Annotated[str, AfterValidator(part_name("optimizer"))] = "adamw"
    """Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), or Muon (Jordan et al. 2024) for the matrices
    inside layers with AdamW for the rest."""
    learning_rate: float = Field(default=5e-4, gt=0.0)
    """Peak learning rate; for "noam" a factor on its formula."""
    schedule: Annotated[str, AfterValidator(part_name("schedule"))] = "inverse_sqrt"
    """How the learning rate decays after the warm-up."""
    warmup_updates: int = Field(default=4000, ge=0)
    """Updates over which the learning rate rises linearly from zero."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of Adam's first moment."""
    beta2: float = Field(default=0.98, ge=0.0, lt=1.0)
    """Decay of Adam's second moment."""
    epsilon: float = Field(default=1e-9, gt=0.0)
    """Added to the square root of Adam's second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay of matrices (decoupled from the gradient except with "adam"); biases and norms never decay."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share ε of the target probability spread evenly over tokens (Szegedy et al. 2016)."""
    label_smoothing_over: Literal["all", "others", "text"] = "all"
    """Tokens that share ε: "all", the label included; all "others"; or "text", all except special tokens."""
    z_loss: float = Field(default=0.0, ge=0.0)
    """Weight of (log Z)² in the loss, Z being the normaliser of the softmax."""
    confidence_penalty: float = Field(default=0.0, ge=0.0)
    """Weight of the negative entropy in the loss (Pereyra et al. 2017)."""
    r_drop: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence of two passes with different dropout (R-Drop, Wu et al. 2021), which double the cost."""
    teacher: str = ""
    """Model folder of a teacher with the same tokens, for word-level distillation (Kim and Rush 2016)."""
    teacher_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """Weight λ of the KL divergence from the teacher in the loss; the rest has weight 1 − λ."""
    clip_norm: float = Field(default=1.0, ge=0.0)
    """Maximum norm of the gradient per target token; 0 never clips."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Numbers of matrix products and activations. "fp16" scales the loss, and needs a GPU.

    "auto" is bf16 on CPUs with instructions for it (AMX or AVX512-BF16), else fp32. On a GPU it is bf16 from compute
    capability 8.0 on, fp16 with 7.0 to 7.5, and fp32 on older ones.
    """
    compile: AutoOrBool = "auto"
    """Compile layers and loss with torch.compile; "auto": on GPUs, for trainings that take longer than compiling."""
    deterministic: bool = True
    """Use deterministic kernels on GPUs, so that a resumed run has the same bits on the same card."""
    seed: int = Field(default=1, ge=0)
    """Seed of all random numbers."""
    validate_every: int = Field(default=500, ge=1)
    """Updates between validations."""
    validation_sentences: int = Field(default=500, ge=0)
    """Number of validation sentences translated for `metric`; 0 for all."""
    save_every: int = Field(default=500, ge=1)
    """Updates between commits of the model folder, and between candidates for averaging."""
    keep: int = Field(default=10, ge=1)
    """Number of candidates kept in `resume/` for averaging."""
    average_last: int = Field(default=5, ge=1)
    """Average this many of the last candidates, unless the best one by `metric` is better by more than 1 % and, on a
    metric of generated texts, by more than 100 points / √texts (4.5 points of 500); 1 uses the best one."""
    log_every: int = Field(default=50, ge=1)
    """Updates between lines of `history.jsonl`."""
    ema: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Decay of an exponential moving average of the weights, stored in addition to the raw weights; 0 for none."""
    patience: int = Field(default=0, ge=0)
    """Stop after this many validations without improvement of `metric`; 0 never stops early."""
    metric: Annotated[str, AfterValidator(OneOf("translume.tasks:metric_names"))] = "nll"
    """Criterion for the best weights on the validation set: "nll", or a metric of the task."""

    ctc_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the loss that is CTC at the encoder (Graves et al. 2006), for sources other than text; 0: none.

    Attention learns slowly from little speech which frames belong to which token. CTC teaches the encoder that order.
    """

    activation_checkpointing: bool = False
    """Keep only the inputs of layers for the backward pass, which computes the rest again (Chen et al. 2016): less
    memory, about a third more time."""
    shard: Literal["none", "optimizer", "full"] = "none"
    """What several processes divide: nothing, the optimiser state (ZeRO-1, Rajbhandari et al. 2020), or weights and
    gradients too (FSDP2, Zhao et al. 2023)."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank r of low-rank adapters (LoRA, Hu et al. 2021), which `train --from` then trains instead of the weights."""
    lora_alpha: float = Field(default=16.0, gt=0.0)
    """Scale α of the adapters, whose output is multiplied by α/r."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of the input of the adapters."""
    lora_targets: LoraTargets = ("query", "key", "value", "output", "feed_forward", "recurrence")
    """Linear maps that get adapters: of attention "query", "key", "value" and "output"; "feed_forward" for both maps of
    feed-forward blocks; "recurrence" for those of SSRUs."""
    lora_norms: bool = False
    """Train the gains and biases of norms besides the adapters."""
    options: OptionTables = Field(default_factory=Options)
    """Settings of parts from outside, a table for each."""

    @property
    def batch_tokens(self) -> int:
        """`max_tokens` as a number: as on a CPU for an "auto" that no training has replaced."""
        return CPU_TOKENS if isinstance(self.max_tokens, str) else self.max_tokens

    @model_validator(mode="after")
    def _muon_needs_whole_matrices(self) -> Self:
        if self.optimizer not in ("adam", "adamw") and self.shard != "none":
            raise ValueError(
                f"shard is {self.shard!r} with optimizer = '{self.optimizer}', expected 'none': it reads whole matrices"
            )
        if self.optimizer == "muon" and self.lora_rank:
            raise ValueError(
                f"lora_rank is {self.lora_rank} with optimizer = 'muon', expected 'adamw': Muon trains no adapters"
            )
        return self

    @model_validator(mode="after")
    def _divided_weights_are_not_scaled(self) -> Self:
        if self.precision == "fp16" and self.shard == "full":
            raise ValueError("precision is 'fp16' with shard = 'full', expected 'auto', 'fp32' or 'bf16'")
        return self

    @model_validator(mode="after")
    def _teacher_share_needs_teacher(self) -> Self:
        usual = type(self).model_fields["teacher_share"].default
        if not self.teacher and self.teacher_share != usual:
            raise ValueError(
                f"teacher_share is {self.teacher_share} without a teacher, expected teacher = a model folder"
            )
        return self
