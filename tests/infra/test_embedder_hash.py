"""The lexical embedder: unit vectors in integers, the same bits everywhere, and nearer for texts that share words."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import BadInput
from events.vectors import ONE, Vector
from infra import embedders
from infra.embedders.hash import HashEmbedder, embedded


def components(vector: Vector) -> np.ndarray:
    return np.frombuffer(vector.q24, dtype="<i4").astype(np.float64)


def cosine(one: str, other: str) -> float:
    return float(components(embedded(one)) @ components(embedded(other))) / ONE**2


@given(st.text(max_size=300))
def test_unit_length(text: str):
    """Every text gives a vector of length 1 in units of 2^-24, lone surrogates and all."""
    vector = embedded(text)
    assert vector.dim == 256 == len(vector.q24) // 4
    # Each of 256 components is rounded by half a unit at most.
    assert abs(math.sqrt(float((components(vector) ** 2).sum())) - ONE) <= 8


@pytest.mark.parametrize("text", ["", " \n\t", "!?! ---", "the and of"])
def test_without_words(text: str):
    """A text without n-grams gives the first unit vector, never zero."""
    vector = components(embedded(text))
    assert vector[0] == ONE
    assert not vector[1:].any()


def test_the_same_bits():
    """The bits of a known text are part of the fingerprint: they never change."""
    told = hashlib.sha256(embedded("Send the frozen fish out from dock 3, Ünïcode and 東京.").q24).hexdigest()
    assert told == "d19d7388f52fe74bedac6a70204e5e5be77662f8fca349971ed4514895237996"


def test_shared_words_are_near():
    """Texts about the same are nearer than texts about something else; equal ones have similarity 1."""
    fish = "Pack the frozen fish and ship it from dock 3"
    assert cosine(fish, fish) == pytest.approx(1.0, abs=1e-6)
    assert cosine(fish, "Ship the frozen fish from another dock") > cosine(fish, "Refund a subscription in euro") + 0.3
    assert cosine("reservations", "reservation") > 0.5


def test_case_and_width_do_not_matter():
    """Upper case and full-width forms are the same words."""
    assert embedded("Dock Three").q24 == embedded("dock ＴＨＲＥＥ").q24


async def test_both_sides_alike_and_in_order():
    """Queries and documents are embedded alike, one vector for each text in order."""
    embedder = HashEmbedder()
    texts = ["one text", "another text", ""]
    assert [v.q24 for v in await embedder.embed(texts, "query")] == [embedded(text).q24 for text in texts]
    assert await embedder.embed(texts, "document") == await embedder.embed(texts, "query")
    assert await embedder.embed([], "query") == []


def test_by_name():
    """It is loaded by its name, has a fingerprint with its dimension, and no options."""
    identity = embedders.load("hash").identity
    assert identity.dimension == 256
    assert "256" in identity.fingerprint
    with pytest.raises(BadInput, match=r"^embedder.size: the hash embedder has no such option; it has none$"):
        embedders.load("hash", {"size": 3})
