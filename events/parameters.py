"""Every parameter of a policy, exact: decimals are fractions, so each comparison is between integers.

A run header holds them all by name (`recorded`); an ablation is another value over the same log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal, cast, get_args, get_type_hints

from events.errors import BadInput, UnknownName

#: as a header or a configuration gives it; a float stands for the decimal it prints as
Given = int | str | float

NearTie = Literal["score", "off", "similarity"]
MergeText = Literal["append", "rewrite"]
Addition = Literal["novelty", "usefulness"]
MisleadingScope = Literal["any", "attributed"]
Neutral = Literal["count", "skip_none"]
ConfValues = Literal["off", "on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Defaults from the paper's Table 7 and the readings of its open points."""

    #: smoothing constant of v~ = v n / (n + lambda), >= 0
    lambda_: Fraction = Fraction(3)
    #: value weight of equation (5), >= 0
    alpha: Fraction = Fraction(1)
    #: bound of the value effect in equation (5), in [0, 1)
    beta: Fraction = Fraction(1, 5)
    #: N: candidates per stage
    top_n: int = 20
    #: K: memories handed to the stage
    top_k: int = 3
    #: similarity a candidate needs, inclusive
    floor: Fraction = Fraction(3, 10)
    #: how far apart two scores (or similarities) are still a tie, inclusive
    margin: Fraction = Fraction(3, 100)
    #: what near ties are made of; `off` is the bare equation (5)
    near_tie: NearTie = "score"
    #: gamma needed to accept an experience, inclusive
    theta_conf: Fraction = Fraction(1, 2)
    #: an experience is novel when 1 - cos to the nearest one is at least this
    novelty: Fraction = Fraction(1, 10)
    #: similarity above which experiences merge, exclusive
    theta_merge: Fraction = Fraction(22, 25)
    #: uses before an item can be pruned
    n_min: int = 3
    #: value below which an item is pruned, exclusive
    theta_prune: Fraction = Fraction(-1, 10)
    #: bullets an item may hold beside its base text
    bullets: int = 5
    #: length of an experience the lint accepts, code points, inclusive
    lint_min: int = 20
    lint_max: int = 800
    #: how a merge adds text: a bullet, or a rewrite proposed by the diagnosing worker
    merge_text: MergeText = "append"
    #: what makes an experience worth adding: distance to what is there, or the gate's own usefulness
    addition: Addition = "novelty"
    #: whether a misleading memory is penalised whatever the label, or in attributed stages only
    misleading: MisleadingScope = "any"
    #: whether feedback 0 counts as a use under label `none`
    neutral: Neutral = "count"
    #: whether gamma < theta_conf makes every feedback 0
    conf_values: ConfValues = "off"

    def recorded(self) -> dict[str, int | str]:
        """Name -> integer, or decimal or mode as a string: the form of the run header."""
        return {_outer(f.name): _recorded(getattr(self, f.name)) for f in fields(self)}

    def changed(self, given: Mapping[str, Given]) -> "Parameters":
        """These with the named ones replaced.

        Raises:
            UnknownName: no such parameter.
            BadInput: not a number, not exact in decimal, out of range, or not a mode of that parameter.
        """
        types = get_type_hints(Parameters)
        values: dict[str, object] = {}
        for name, value in given.items():
            inner = "lambda_" if name == "lambda" else name
            if inner not in types or name == "lambda_":
                raise UnknownName("policy parameter", name, map(_outer, types))
            values[inner] = _parsed(name, types[inner], value)
        changed = replace(self, **values)  # type: ignore[arg-type]  # each was parsed to its field's type above
        changed.check()
        return changed

    def check(self) -> None:
        """Raises: BadInput: a parameter out of its range."""
        ranges: dict[str, bool] = {
            "lambda": self.lambda_ >= 0,
            "alpha": self.alpha >= 0,
            "beta": 0 <= self.beta < 1,
            "top_n": self.top_n >= 1,
            "top_k": self.top_k >= 0,
            "floor": -1 <= self.floor <= 1,
            "margin": self.margin >= 0,
            "theta_conf": 0 <= self.theta_conf <= 1,
            "novelty": 0 <= self.novelty <= 2,
            "theta_merge": -1 <= self.theta_merge <= 1,
            "n_min": self.n_min >= 1,
            "theta_prune": -1 <= self.theta_prune <= 1,
            "bullets": self.bullets >= 0,
            "lint_min": self.lint_min >= 0,
            "lint_max": self.lint_max >= self.lint_min,
        }
        for name, fits in ranges.items():
            if not fits:
                raise BadInput(f"policy parameter {name} is out of its range")


def _outer(name: str) -> str:
    return name.rstrip("_")


def _recorded(value: Fraction | int | str) -> int | str:
    if not isinstance(value, Fraction):
        return value
    if value.denominator == 1:
        return value.numerator
    # Exact: `_parsed` lets in decimals only, whose denominators divide a power of ten.
    return format((Decimal(value.numerator) / Decimal(value.denominator)).normalize(), "f")


def _parsed(name: str, kind: object, value: Given) -> Fraction | int | str:
    modes = get_args(kind)
    if modes:
        if value not in modes:
            raise UnknownName(f"mode of {name}", str(value), map(str, modes))
        return cast("str", value)
    try:
        number = Decimal(str(value)) if not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or len(number.as_tuple().digits) > 20:
        raise BadInput(f"policy parameter {name}: {value!r} is no decimal number")
    if kind is int:
        if number != number.to_integral_value():
            raise BadInput(f"policy parameter {name}: {value!r} is no integer")
        return int(number)
    return Fraction(number)
