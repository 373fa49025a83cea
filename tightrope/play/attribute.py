"""Numbers that remember how they were computed from an environment's attributes."""

from __future__ import annotations

from .program import OPERATORS, Expression


class Attribute(float):
    """A number that remembers how it was computed from attributes. Its value, a little off the true one, stands for it in the
    arguments of operations; `table` has the expression of each such value."""

    expression: Expression
    table: dict[float, Expression]

    def __new__(cls, value: float, expression: Expression, table: dict[float, Expression]) -> Attribute:
        made = super().__new__(cls, value)
        made.expression, made.table = expression, table
        table[float(value)] = expression
        return made

    def _joined(self, operator: str, a: object, b: object) -> Attribute:
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return NotImplemented
        parts = [x.expression if isinstance(x, Attribute) else float(x) for x in (a, b)]
        return Attribute(OPERATORS[operator](float(a), float(b)), (operator, *parts), self.table)

    def __add__(self, other: object) -> Attribute:
        return self._joined("+", self, other)

    def __radd__(self, other: object) -> Attribute:
        return self._joined("+", other, self)

    def __sub__(self, other: object) -> Attribute:
        return self._joined("-", self, other)

    def __rsub__(self, other: object) -> Attribute:
        return self._joined("-", other, self)

    def __mul__(self, other: object) -> Attribute:
        return self._joined("*", self, other)

    def __rmul__(self, other: object) -> Attribute:
        return self._joined("*", other, self)

    def __truediv__(self, other: object) -> Attribute:
        return self._joined("/", self, other)

    def __rtruediv__(self, other: object) -> Attribute:
        return self._joined("/", other, self)

    def __pow__(self, other: object, modulus: None = None) -> Attribute:
        return self._joined("**", self, other)

    def __rpow__(self, other: object, modulus: None = None) -> Attribute:
        return self._joined("**", other, self)

    def __neg__(self) -> Attribute:
        return Attribute(-float(self), ("neg", self.expression), self.table)

    def __abs__(self) -> Attribute:
        return Attribute(abs(float(self)), ("abs", self.expression), self.table)
