"""One declared parameter of an acceptance rule: its range, its default and its check.

The command line and the page build their controls from these records. Knows nothing of any
rule, and nothing of how a control looks.
"""

import math
import reprlib
from dataclasses import dataclass
from numbers import Real

Value = float | int | str


def _plain(number: float) -> str:
    """Without an exponent where it is whole: 4294967295, not 4.29497e+09."""
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


@dataclass(frozen=True)
class Parameter:
    """A number between `minimum` and `maximum`, or, where `choices` is given, one of them."""

    name: str
    label: str
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    choices: tuple[str, ...] | None = None

    @property
    def kind(self) -> type[float] | type[int] | type[str]:
        return type(self.default)

    @property
    def range(self) -> str:
        """The allowed values in words, as error messages give them."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        noun = "a whole number" if self.kind is int else "a number"
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            return f"{noun} between {_plain(low)} and {_plain(high)}"
        if low is not None:
            return f"{noun} of at least {_plain(low)}"
        return noun if high is None else f"{noun} of at most {_plain(high)}"

    def check(self, value: object) -> Value:
        """The value in this parameter's type. ValueError if it is not allowed."""
        if self.choices is not None:
            if not isinstance(value, str) or value not in self.choices:
                raise self._refusal(value)
            return value
        number = self._number(value)
        if self.kind is int and not number.is_integer():
            raise self._refusal(value)
        if self.minimum is not None and number < self.minimum:
            raise self._refusal(value)
        if self.maximum is not None and number > self.maximum:
            raise self._refusal(value)
        return int(number) if self.kind is int else number

    def _number(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (Real, str)):
            raise self._refusal(value)
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise self._refusal(value) from None
        if not math.isfinite(number):
            raise self._refusal(value)
        return number

    def _refusal(self, value: object) -> ValueError:
        return ValueError(f"{self.name} must be {self.range}, got {reprlib.repr(value)}")
