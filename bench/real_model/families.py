"""The tasks of the demonstration: those of BFCL's `live_simple` that come in families.

A family is what the benchmark wrote for one function: the middle number of an id, `live_simple_<n>-<family>-<k>`. A
lesson from one of its tasks can help the next; most functions have one task only, and nothing to learn for.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, zip_longest

DOMAIN = "live_simple"
#: how many tasks a family has at least; in the pinned data there are seven such
SMALLEST = 5


def families(ids: Iterable[str]) -> dict[str, list[str]]:
    """Family -> the ids of its tasks, in their order; those with `SMALLEST` tasks or more."""
    return {family: tasks for family, tasks in _by_family(ids).items() if len(tasks) >= SMALLEST}


def stream(found: dict[str, list[str]], limit: int) -> list[str]:
    """At most `limit` ids, the families in turn: each has met its first tasks before it meets its last ones."""
    turns = chain.from_iterable(zip_longest(*found.values()))
    return [id_ for id_ in turns if id_ is not None][:limit]


def later(ids: Iterable[str]) -> set[str]:
    """Of a stream, the last three tenths of each family: where a memory has had its chance."""
    return {id_ for tasks in _by_family(ids).values() for id_ in tasks[7 * len(tasks) // 10 :]}


def _by_family(ids: Iterable[str]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for id_ in ids:
        found[id_.rsplit("_", 1)[-1].split("-")[1]].append(id_)
    return found
