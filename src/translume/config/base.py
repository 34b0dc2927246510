"""What every group of settings is: frozen, strict, documented field by field."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

LARGEST = 2**53
"""Whole numbers are smaller than this, which every reader of TOML and JSON holds exactly; but a seed may be any."""


class Settings(BaseModel):
    """A group of settings: values never change, unknown keys are refused, "8" is not 8, infinity is no number."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="after")
    def _whole_numbers_fit(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name != "seed" and isinstance(value, int) and value >= LARGEST:
                raise ValueError(f"{name} is {value}, wanted less than {LARGEST}")
        return self


def _as_tuple(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""Some words or paths: one string or a list of strings."""

Numbers = Annotated[tuple[float, ...], BeforeValidator(_as_tuple)]
"""A list of numbers."""
