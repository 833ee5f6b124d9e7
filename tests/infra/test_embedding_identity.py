"""Fingerprints that people can read, what differs between two embedders, and rows that are no unit vectors."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import BadInput
from events.kinds import EmbedderIdentity
from events.vectors import Vector, fixed_point
from infra.embedding_identity import (
    PROBES,
    assert_same,
    differences,
    facts_of,
    fingerprint,
    normal,
    short,
    unit_vector,
)
from runtime.errors import EmbeddingFailed

FACTS = {"model": "Qwen/Qwen3-Embedding-0.6B", "dimension": 3, "torch": "2.15.0", "sentence-transformers": "6.2.0"}


def identity(probes: list[Vector] | None = None, dimension: int = 3, **changes: str | int) -> EmbedderIdentity:
    facts = FACTS | {"dimension": dimension} | {name.replace("_", "-"): value for name, value in changes.items()}
    return EmbedderIdentity(
        fingerprint=fingerprint("sentence-transformers", facts), dimension=dimension, probes=probes or []
    )


def test_a_fingerprint_is_read_by_people() -> None:
    """One line, the facts in their order."""
    assert identity().fingerprint == (
        "sentence-transformers; model=Qwen/Qwen3-Embedding-0.6B; dimension=3; torch=2.15.0; sentence-transformers=6.2.0"
    )
    assert short(identity().fingerprint) == "sentence-transformers Qwen/Qwen3-Embedding-0.6B"
    assert short("hash-ngram-v1-d256-q24") == "hash-ngram-v1-d256-q24"


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(), max_size=4))
def test_every_value_comes_back(facts: dict[str, str]) -> None:
    """Whatever an instruction holds, a fingerprint is one line, and its facts can be read from it."""
    facts.pop("embedder", None)
    written = fingerprint("name", facts)
    assert "\n" not in written
    assert facts_of(written) == {"embedder": "name", **facts}


@given(st.text(max_size=6), st.text(max_size=6), st.text(max_size=6), st.text(max_size=6))
def test_two_instructions_have_two_fingerprints(a: str, b: str, c: str, d: str) -> None:
    """No value can be written so that it looks like another fact."""
    one, other = {"model": a, "query": b}, {"model": c, "query": d}
    assert (fingerprint("n", one) == fingerprint("n", other)) == (one == other)


def test_another_version_is_named() -> None:
    """The line says what differs, and from what to what."""
    with pytest.raises(BadInput) as caught:
        assert_same(identity(), identity(sentence_transformers="6.3.0"))
    assert str(caught.value) == (
        "the run embeds with sentence-transformers Qwen/Qwen3-Embedding-0.6B, here is sentence-transformers "
        "Qwen/Qwen3-Embedding-0.6B: sentence-transformers 6.2.0 -> 6.3.0"
    )


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (identity(torch="2.16"), ["torch 2.15.0 -> 2.16"]),
        (identity(dimension=2), ["dimension 3 -> 2"]),
        (identity(instruction=""), ["instruction none -> ''"]),
        (identity(), []),
        (EmbedderIdentity(fingerprint="hash", dimension=3), ["embedder sentence-transformers -> hash"]),
    ],
    ids=["version", "dimension", "fact", "same", "embedder"],
)
def test_what_differs(other: EmbedderIdentity, told: list[str]) -> None:
    """Every fact by its name."""
    assert differences(identity(), other)[: len(told) or None] == told


def near(cosine: float) -> Vector:
    return fixed_point([cosine, (1 - cosine * cosine) ** 0.5, 0.0])


def test_a_server_is_told_by_its_probes() -> None:
    """Rounding on other hardware is the same model; a cosine below 1 - 1e-4 is another one by the same name."""
    one = [fixed_point([1.0, 0.0, 0.0]), fixed_point([0.0, 1.0, 0.0])]
    recorded = identity(one)
    assert_same(recorded, identity([near(1 - 0.5e-4), one[1]]))
    with pytest.raises(BadInput, match=r"probe 1: its vectors have cosine 0\.9998"):
        assert_same(recorded, identity([near(1 - 2e-4), one[1]]))
    with pytest.raises(BadInput, match=r"probe 2: its vectors have cosine -1\.0"):
        assert_same(recorded, identity([one[0], fixed_point([0.0, -1.0, 0.0])]))
    with pytest.raises(BadInput, match=r"probes: 2 -> 0"):
        assert_same(recorded, identity())


def test_the_boundary_of_probes_is_exact() -> None:
    """The dot is an integer: 1 - 1e-4 passes, one unit less does not."""
    unit = fixed_point([1.0, 0.0, 0.0])
    places = np.linspace(1 - 1.01e-4, 1 - 0.99e-4, 2001)
    verdicts = [differences(identity([unit]), identity([near(place)])) == [] for place in places]
    dots = [int(unit.exact() @ near(place).exact()) for place in places]
    assert verdicts == [10_000 * dot >= 9_999 * 2**48 for dot in dots]
    assert len(set(verdicts)) == 2


def test_probes_are_fixed() -> None:
    """They belong to every recorded log, whose page names them: both sides, one text that is not ASCII."""
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    assert all(f"{place}. `{text}` as a {side}" in page for place, (text, side) in enumerate(PROBES, 1))
    assert [side for _, side in PROBES] == ["document", "document", "query"]
    assert not PROBES[1][0].isascii()
    assert [text for text, _ in PROBES] == [normal(text) for text, _ in PROBES]


def test_texts_are_composed_and_writable() -> None:
    """NFC, and nothing that UTF-8 has no form for."""
    assert normal("e\u0301") == "\u00e9"
    assert normal("a\ud800b").encode()


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ([0.0, 0.0], "is zero"),
        ([-0.0, 0.0], "is zero"),
        ([float("nan"), 1.0], "is not finite"),
        ([float("inf"), 1.0], "is not finite"),
        ([1e200, 1e200], "is too long or too short"),
        ([1e-200, 1e-200], "is too long or too short"),
        ([1.0], "1 dimensions where the embedder has 2"),
        ([], "0 dimensions where the embedder has 2"),
    ],
)
def test_rows_that_are_no_vectors(row: list[float], fault: str) -> None:
    """Each is refused with the text it is of, and without a warning of numpy's."""
    with pytest.raises(EmbeddingFailed, match=rf"^text 7: .*{fault}"):
        unit_vector(row, 2, "text 7")


def test_a_row_is_normalised_in_float64_and_rounded_half_to_even() -> None:
    """The same as the nearest integers of component / length x 2^24, from float32 too."""
    assert unit_vector([3.0, 4.0], 2, "t").array().tolist() == [round(0.6 * 2**24), round(0.8 * 2**24)]
    wide = np.array([1e-3, 2e-3, 5e-3], dtype=np.float32)
    exact = wide.astype(np.float64)
    assert unit_vector(wide, 3, "t").array().tolist() == np.rint(exact / np.sqrt(exact @ exact) * 2**24).tolist()
