"""`translume inspect` for a language model."""

from translume.cli.inspect import InspectOptions
from translume.errors import SettingsError


def inspect_language_model(options: InspectOptions) -> None:
    """Refuse a language model."""
    raise SettingsError(f"inspect: {options.model} is a language model, expected a translator or a classifier")
