"""Whose vectors a bank holds: a fingerprint that people can read, and what a server's model made of three fixed texts.

A fingerprint is `<name>; <fact>=<value>; ...` in a fixed order. The address of a server is no part of it: a model may
move. That it is still the same model is told by its probes.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from events.codec import clean_text
from events.errors import BadInput
from events.kinds import EmbedderIdentity
from events.late import np, npt
from events.vectors import DOT_ONE, Vector, fixed_point
from runtime.errors import EmbeddingFailed
from runtime.ports import Side

#: what a server's model is known by again; short, so that every server takes them
PROBES: tuple[tuple[str, Side], ...] = (
    ("Before booking a flight, check the passenger's dates against the fare rules.", "document"),
    ("naïve café — 東京, ½ × 3 = 1.5", "document"),
    ("How do I cancel an order that has already been shipped?", "query"),
)
#: how alike a probe's vectors must be, as 1 - cosine in units of 1e-4: float32 on other hardware moves them by 1e-7,
#: half precision by 1e-5, another model by more than 0.1
_APART_E4 = 1

#: what float64 holds the square of, many times over
_SQUARABLE = (1e-140, 1e140)

#: what would end a fact's value, or a line
_RESERVED = re.compile(r"[%;\x00-\x1f\x7f]")


class Identified:
    """An embedder that finds out whose vectors it makes: `identify` sets that."""

    _identity: EmbedderIdentity | None = None

    @property
    def identity(self) -> EmbedderIdentity:
        """Known once `identify` has returned."""
        if self._identity is None:
            raise RuntimeError("an embedder's identity is asked for before it is known")
        return self._identity


def fingerprint(name: str, facts: Mapping[str, str | int]) -> str:
    """One line of `facts` in their order; `;`, `%` and control characters in values are percent-encoded."""
    told = (f"{fact}={_RESERVED.sub(lambda at: f'%{ord(at[0]):02X}', str(value))}" for fact, value in facts.items())
    return "; ".join((name, *told))


def facts_of(written: str) -> dict[str, str]:
    """The facts of a fingerprint, the embedder's name as `embedder`."""
    name, *told = written.split("; ")
    pairs = (one.partition("=") for one in told)
    return {"embedder": name, **{fact: unquote(value) for fact, _, value in pairs}}


def differences(recorded: EmbedderIdentity, here: EmbedderIdentity) -> list[str]:
    """In what two embedders differ, as `fact recorded -> here`; empty where their vectors may meet."""
    there, now = facts_of(recorded.fingerprint), facts_of(here.fingerprint)
    there["dimension"], now["dimension"] = str(recorded.dimension), str(here.dimension)
    found = [
        f"{fact} {there.get(fact, 'none') or repr('')} -> {now.get(fact, 'none') or repr('')}"
        for fact in {**there, **now}
        if there.get(fact) != now.get(fact)
    ]
    if not found and recorded.fingerprint != here.fingerprint:
        found.append("the order of its facts")
    return found or _apart(recorded.probes, here.probes)


def short(written: str) -> str:
    """The embedder's name and, where there are several, its model: a fingerprint for tables and errors."""
    facts = facts_of(written)
    return f"{facts['embedder']} {facts.get('model', '')}".strip()


def _apart(recorded: Sequence[Vector], here: Sequence[Vector]) -> list[str]:
    """Which probes came out otherwise."""
    if len(recorded) != len(here):
        return [f"probes: {len(recorded)} -> {len(here)}"]
    found: list[str] = []
    for place, (one, other) in enumerate(zip(recorded, here, strict=True), 1):
        # float64 products of these integers are exact.
        dot = int(one.exact() @ other.exact()) if one.dim == other.dim else 0
        if 10_000 * dot < (10_000 - _APART_E4) * DOT_ONE:
            found.append(f"probe {place}: its vectors have cosine {dot / DOT_ONE:.6f}")
    return found


def assert_same(recorded: EmbedderIdentity, here: EmbedderIdentity) -> None:
    """The vectors of both may stand in one bank.

    Raises:
        BadInput: they may not; says in what they differ.
    """
    if different := differences(recorded, here):
        there, now = short(recorded.fingerprint), short(here.fingerprint)
        raise BadInput(f"the run embeds with {there}, here is {now}: {'; '.join(different)}")


def normal(text: str) -> str:
    """`text` as it is embedded and remembered: composed (NFC), and in characters that UTF-8 has."""
    return unicodedata.normalize("NFC", clean_text(text))


def unit_vector(
    components: "Sequence[float] | npt.NDArray[np.float64] | npt.NDArray[np.float32]", dimension: int, which: str
) -> Vector:
    """An embedder's output in fixed point.

    Args:
        components: shape (d,), any length but 0.
        dimension: d.
        which: of which text, for the error.

    Raises:
        EmbeddingFailed: another dimension; zero, not finite or not to be normalised.
    """
    if len(components) != dimension:
        raise EmbeddingFailed(f"{which}: {len(components)} dimensions where the embedder has {dimension}")
    largest = float(np.abs(np.asarray(components, dtype=np.float64)).max(initial=0.0))
    if not np.isfinite(largest) or not _SQUARABLE[0] < largest < _SQUARABLE[1]:
        fault = "zero" if largest == 0 else "too long or too short" if np.isfinite(largest) else "not finite"
        raise EmbeddingFailed(f"{which}: the embedder's vector is {fault}")
    return fixed_point(components)
