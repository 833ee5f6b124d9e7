"""The lexical embedder: hashed n-grams with small integer weights. No download, no model, the same bits everywhere.

It sees shared words and spellings, not meaning: good for a first run and for tests, not for published numbers.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from msgspec import Struct

from events.kinds import EmbedderIdentity
from events.vectors import ONE, Vector, of_raw
from infra.embedders import Around
from runtime.ports import Side

OPERATIONAL: frozenset[str] = frozenset()

#: dimensions; a power of two, so that a bucket is a few bits of the hash
_DIMENSION = 256
_WORD = re.compile(r"\w+")
#: weight of a whole word, of two words in a row, of three characters of a word
_WORD_WEIGHT, _PAIR_WEIGHT, _TRIGRAM_WEIGHT = 4, 2, 1
#: keeps the square root's precision in integers
_SCALE = 1 << 10
#: words this frequent in any text say nothing about it
_COMMON = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "me",
        "my",
        "of",
        "on",
        "or",
        "our",
        "so",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "will",
        "with",
        "you",
        "your",
        "can",
        "could",
        "should",
        "would",
        "not",
        "no",
        "any",
        "all",
        "please",
        "task",
        "tasks",
    ]
)


class HashEmbedder:
    """Signed feature hashing of words, word pairs and character trigrams."""

    is_free = True
    identity = EmbedderIdentity(fingerprint=f"hash-ngram-v1-d{_DIMENSION}-q24", dimension=_DIMENSION)

    async def identify(self) -> EmbedderIdentity:
        return self.identity

    async def start(self) -> None:
        """Nothing to do."""

    async def embed(self, texts: Sequence[str], side: Side) -> list[Vector]:
        """One vector per text; both sides alike."""
        del side
        return [embedded(text) for text in texts]

    async def aclose(self) -> None:
        """Nothing to do."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """It has no options."""


def create(settings: Settings, around: Around) -> HashEmbedder:
    """The embedder."""
    del settings, around
    return HashEmbedder()


def embedded(text: str) -> Vector:
    """`text` as a unit vector, shape (256,); the first unit vector for a text without words."""
    words = [word for word in _WORD.findall(unicodedata.normalize("NFKC", text).lower()) if word not in _COMMON]
    grams: Counter[str] = Counter()
    for word in words:
        grams[word] += _WORD_WEIGHT
        padded = f"^{word}$"
        for start in range(len(padded) - 2):
            grams[f"#{padded[start : start + 3]}"] += _TRIGRAM_WEIGHT
    for first, second in pairwise(words):
        grams[f"{first} {second}"] += _PAIR_WEIGHT
    sums = [0] * _DIMENSION
    for gram, weight in grams.items():
        bucket, sign = _place(gram)
        # A word said ten times is not ten times the topic: an integer square root damps it.
        sums[bucket] += sign * math.isqrt(_SCALE * weight)
    squared = sum(component * component for component in sums)
    if squared == 0:
        sums[0], squared = 1, 1
    # sqrt, division and multiplication are correctly rounded by IEEE 754: the same bits on every machine.
    length = math.sqrt(squared)
    return of_raw(np.array([round(c / length * ONE) for c in sums], dtype="<i4").tobytes())


@lru_cache(maxsize=1 << 16)
def _place(gram: str) -> tuple[int, int]:
    """Bucket and sign of one n-gram."""
    value = int.from_bytes(blake2b(gram.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "little")
    return value % _DIMENSION, 1 if value >> 31 else -1
