"""Steps that read the rows of several searches at once: what all rows share is computed once for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from translume.belief import NextToken
from translume.decoding.step import S, Step, Stepper

Reading = tuple[Tensor, S]
"""A prefix [N, 1 + t] and the state that is to read it: what a step takes."""
Read = tuple[NextToken, S]
"""What a step gives."""


@runtime_checkable
class JointStep(Step[S], Protocol[S]):
    """A step that can read the rows of several searches at once, whatever N and t each has."""

    def together(self, readings: Sequence[Reading[S]]) -> list[Read[S]]:
        """What the step gives for each of `readings`, as if it were alone."""


@runtime_checkable
class JointStepper(Stepper, Protocol):
    """A stepper that offers the same."""

    def step_together(self, readings: Sequence[Reading[Any]]) -> Sequence[Read[Any]]:
        """See `JointStep.together`."""


@dataclass(frozen=True, slots=True)
class StepOf:
    """The step of a stepper, joint as far as the stepper knows how; equal to that of the same stepper."""

    stepper: Stepper

    def __call__(self, prefix: Tensor, state: Any) -> Read[Any]:
        return self.stepper.step(prefix, state)

    def together(self, readings: Sequence[Reading[Any]]) -> list[Read[Any]]:
        """See `JointStep`."""
        if len(readings) > 1 and isinstance(self.stepper, JointStepper):
            return [*self.stepper.step_together(readings)]
        return [self.stepper.step(*each) for each in readings]


def stepped(step: Step[S], readings: Sequence[Reading[S]]) -> list[Read[S]]:
    """What the step gives for each of `readings`: at once where it is a `JointStep`, else one after another."""
    if len(readings) > 1 and isinstance(step, JointStep):
        return step.together(readings)
    return [step(*each) for each in readings]
