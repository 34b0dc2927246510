"""What every group of settings is: frozen, strict, documented field by field."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from translume.config.faults import explain
from translume.errors import SettingsError, nearest

LARGEST = 2**53
"""Whole numbers are smaller than this, which every reader of TOML and JSON holds exactly; but a seed may be any."""


UNTOLD: Final = "untold"
"""The context of a validation whose caller tells its faults; without it, the group at fault does so by itself."""


class Settings(BaseModel):
    """A group of settings: values never change, unknown keys are refused, "8" is not 8, infinity is no number.

    SettingsError, one line, for a value that is not allowed.
    """

    table: ClassVar[str] = ""
    """Where it stands in a TOML file, such as "decoding"."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """What validates: pydantic's own, whose many lines become one."""

        def told(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
            try:
                return validate(value)
            except ValidationError as error:
                if info.context == UNTOLD:
                    raise
                raise SettingsError(explain(cls, error, cls.table)) from None

        return WrapValidator(told).__get_pydantic_core_schema__(source, handler)

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


@dataclass(frozen=True, slots=True)
class OneOf:
    """A validator of texts that allows the names which the function "package.module:function" returns."""

    function: str

    def allowed(self) -> list[str]:
        """Return the names."""
        names: list[str] = resolve_name(self.function)()
        return names

    def __call__(self, value: str) -> str:
        names = self.allowed()
        if value not in names:
            raise ValueError(f"found {value!r}{nearest(value, names)}")
        return value


Numbers = Annotated[tuple[float, ...], BeforeValidator(_as_tuple)]
"""A list of numbers."""
