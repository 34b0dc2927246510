"""A task: sequence to sequence under another name, where more would differ."""

from translume.parts import part
from translume.tasks.sequence import SequenceTask


@part("task", "my_part", interface=1)
class MyPart(SequenceTask):
    """Override the methods of `Task` that differ."""

    name = "my_part"
    summary = "a text for a text"
