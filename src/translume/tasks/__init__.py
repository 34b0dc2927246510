"""Tasks that a model can be trained for, one module each. Importing this package loads neither torch nor pydantic."""

from translume.tasks.task import Task, check_settings, find_task, metric_names, task_names, task_of

__all__ = ["Task", "check_settings", "find_task", "metric_names", "task_names", "task_of"]
