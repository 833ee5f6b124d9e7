"""Unit vectors in fixed point: components x 2^24 as int32, so that every dot product is an exact integer.

|x||y| <= 2^48 (1 + 2e-6) by Cauchy-Schwarz, and so is every partial sum: far below 2^53. A float64 product of
integer-valued arrays is therefore exact in any order, on any CPU and BLAS.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from events.errors import NotAUnitVector

#: one component's 1.0
ONE = 1 << 24
#: one dot product's 1.0: dots are integers in units of 2^-48
DOT_ONE = 1 << 48

#: how far the squared length may be from 2^48: rounding moves it by at most sqrt(d) x 2^24 + d / 4
_SLACK = 1 << 38


class Vector(Struct, frozen=True, kw_only=True):
    """`{"dim": d, "q24": base64}`: d little-endian int32."""

    dim: int
    q24: bytes

    def array(self) -> npt.NDArray[np.int32]:
        """Components x 2^24, int32, shape (d,); a view, not a copy."""
        return np.frombuffer(self.q24, dtype="<i4")

    def exact(self) -> npt.NDArray[np.float64]:
        """Components x 2^24 as integer-valued float64, shape (d,).

        Raises:
            NotAUnitVector: `dim` is not what `q24` holds, or the length is not 1.
        """
        if len(self.q24) != 4 * self.dim or self.dim == 0:
            raise NotAUnitVector(f"a vector says {self.dim} dimensions and holds {len(self.q24)} bytes, not 4 each")
        exact = self.array().astype(np.float64)
        # A hostile log may hold components up to 2^31: then this sum is inexact, but still far above the bound.
        if abs(float(exact @ exact) - DOT_ONE) > _SLACK:
            raise NotAUnitVector("a vector's squared components do not add up to 2^48: it is not of unit length")
        return exact


def fixed_point(components: Sequence[float] | npt.NDArray[np.float64] | npt.NDArray[np.float32]) -> Vector:
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
    return Vector(dim=values.size, q24=np.rint(values / length * ONE).astype("<i4").tobytes())
