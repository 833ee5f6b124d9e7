"""Unit vectors in fixed point: components x 2^24 as int32, so that every dot product is an exact integer.

|x||y| <= 2^48 (1 + 2e-6) by Cauchy-Schwarz, and so is every partial sum: far below 2^53. A float64 product of
integer-valued arrays is therefore exact in any order, on any CPU and BLAS.
"""

from base64 import b64encode
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, field

from events.errors import NotAUnitVector
from events.late import np, npt
from events.ranges import Ordinal

#: one component's 1.0
ONE = 1 << 24
#: one dot product's 1.0: dots are integers in units of 2^-48
DOT_ONE = 1 << 48

#: how far the squared length may be from 2^48: rounding moves it by at most sqrt(d) x 2^24 + d / 4
_SLACK = 1 << 38


class Vector(Struct, frozen=True, kw_only=True, gc=False):
    """`{"dim": d, "q24": base64}`: d little-endian int32.

    The text is unpacked where the vector is used: a replay uses few of those that it reads, and unpacking is half of
    what decoding an event costs.
    """

    dim: Ordinal
    #: base64 of `q24`, which is its name in the log
    packed: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] = field(name="q24")

    @property
    def fits(self) -> bool:
        """Whether the text is as long as `dim` says: what can be said without unpacking it."""
        return len(self.packed) == (4 * self.dim + 2) // 3 * 4

    @property
    def q24(self) -> bytes:
        """The d little-endian int32.

        Raises:
            NotAUnitVector: no base64, or `dim` is not what it holds.
        """
        try:
            raw = convert(self.packed, bytes)
        except ValidationError as error:
            raise NotAUnitVector("a vector's components are no base64") from error
        if len(raw) != 4 * self.dim or not raw:
            raise NotAUnitVector(f"a vector says {self.dim} dimensions and holds {len(raw)} bytes, not 4 each")
        return raw

    def array(self) -> "npt.NDArray[np.int32]":
        """Components x 2^24, int32, shape (d,).

        Raises:
            NotAUnitVector: as `q24`.
        """
        return np.frombuffer(self.q24, dtype="<i4")

    def exact(self) -> "npt.NDArray[np.float64]":
        """Components x 2^24 as integer-valued float64, shape (d,), which nobody may write to.

        Raises:
            NotAUnitVector: as `q24`, or the length is not 1.
        """
        return _exact(self)


@lru_cache(maxsize=64)
def _exact(vector: Vector) -> "npt.NDArray[np.float64]":
    # A vector is recalled with, drafted, checked and folded within moments, by one process or another.
    exact = unit(vector.q24)
    exact.flags.writeable = False
    return exact


def unit(raw: bytes) -> "npt.NDArray[np.float64]":
    """The components in `raw` (little-endian int32) as integer-valued float64, shape (d,).

    Raises:
        NotAUnitVector: their length is not 1.
    """
    exact = np.frombuffer(raw, dtype="<i4").astype(np.float64)
    # A hostile log may hold components up to 2^31: then this sum is inexact, but still far above the bound.
    if abs(float(exact @ exact) - DOT_ONE) > _SLACK:
        raise NotAUnitVector("a vector's squared components do not add up to 2^48: it is not of unit length")
    return exact


def units(raw: bytes, count: int) -> "npt.NDArray[np.float64]":
    """As `unit`, for `count` vectors one after the other: shape (count, d)."""
    exact = np.frombuffer(raw, dtype="<i4").astype(np.float64).reshape(count, -1)
    if (np.abs(np.einsum("ij,ij->i", exact, exact) - DOT_ONE) > _SLACK).any():
        raise NotAUnitVector("a vector's squared components do not add up to 2^48: it is not of unit length")
    return exact


def of_raw(raw: bytes) -> Vector:
    """The vector whose d little-endian int32 are `raw`."""
    return Vector(dim=len(raw) // 4, packed=b64encode(raw).decode("ascii"))


def fixed_point(components: "Sequence[float] | npt.NDArray[np.float64] | npt.NDArray[np.float32]") -> Vector:
    """`components` normalised in float64, times 2^24, each rounded half to even.

    Args:
        components: an embedder's output, shape (d,).

    Raises:
        NotAUnitVector: empty, not finite, or all zero.
    """
    values = np.asarray(components, dtype=np.float64)
    length = float(np.sqrt(values @ values)) if values.ndim == 1 and values.size else 0.0
    if not np.isfinite(length) or length == 0.0:
        raise NotAUnitVector("an embedder returned a vector that is empty, zero or not finite")
    return of_raw(np.rint(values / length * ONE).astype("<i4").tobytes())
