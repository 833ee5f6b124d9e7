"""Splits and orderings: the paper's printed numbers, and prerequisites before their dependents."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import BadInput, UnknownName
from runtime.protocol import order_key, task_list, train_size
from runtime.task import Task

TABLE1 = {
    "tau2": ({"mock": 10, "airline": 50, "retail": 114, "telecom": 2285, "banking": 97}, 1787, 769),
    "vita": ({"a": 100, "b": 100, "c": 100, "d": 100}, 280, 120),
    "bfcl": (
        {
            "live_simple": 258,
            "live_multiple": 1053,
            "live_parallel": 16,
            "live_parallel_multiple": 24,
            "live_irrelevance": 884,
            "live_relevance": 16,
            "memory": 155,
            "web_search": 100,
        },
        1751,
        755,
    ),
}


def tasks_of(domains):
    return [Task(task_id=f"{domain}-{i}", domain=domain) for domain, n in domains.items() for i in range(n)]


@pytest.mark.parametrize("name", TABLE1)
def test_table1(name):
    """Floor(7n/10) per domain gives the sizes that the paper's percentages come from."""
    domains, train, held_out = TABLE1[name]
    tasks = tasks_of(domains)
    first = task_list(tasks, protocol="table1", part="train", seed=1)
    second = task_list(tasks, protocol="table1", part="eval", seed=1)
    assert (len(first.tasks), len(second.tasks)) == (train, held_out)
    assert set(first.ids) | set(second.ids) == {task.task_id for task in tasks}


def test_text_protocol():
    """Each domain is cut to the smallest first, so all count the same."""
    tasks = tasks_of({"a": 10, "b": 37})
    assert len(task_list(tasks, protocol="text", part="train", seed=1).tasks) == 14
    assert len(task_list(tasks, protocol="text", part="eval", seed=1).tasks) == 6


def test_train_size():
    """In integers: 0.7 x 10 is 7 and not 6.999."""
    assert [train_size(n) for n in (0, 1, 2, 10, 114)] == [0, 0, 1, 7, 79]


def test_orderings():
    """A seed gives one order by hash; no seed keeps the benchmark's own."""
    tasks = tasks_of({"a": 20, "b": 20})
    canonical = [task.task_id for task in tasks]
    one, again, two = (task_list(tasks, seed=seed).ids for seed in (1, 1, 2))
    assert one == again == sorted(canonical, key=lambda task: order_key(1, task[0], task))
    assert one != two
    assert sorted(one) == sorted(two) == sorted(canonical)
    assert task_list(tasks).ids == canonical


def test_order_key_is_fixed():
    """The key is part of a run's meaning and never changes."""
    known = "608ff95f90382098c72829a515d4c6b1664ca82bb9595c44ceca19154ef38827"
    assert order_key(42, "home", "lights-1") == known


def test_preparatory_tasks_come_along():
    """What a chosen task needs comes before it, prepares only, and does not count for split or limit."""
    chain = [
        Task(task_id="prep-0", domain="memory", preparatory=True),
        Task(task_id="prep-1", domain="memory", preparatory=True, depends_on=["prep-0"]),
        Task(task_id="ask-0", domain="memory", depends_on=["prep-1"]),
        Task(task_id="ask-1", domain="memory", depends_on=["prep-1"]),
        Task(task_id="other", domain="web"),
        Task(task_id="prep-9", domain="memory", preparatory=True),
    ]
    first = task_list(chain, limit=1)
    assert (first.ids, first.preparatory) == (["prep-0", "prep-1", "ask-0"], ["prep-0", "prep-1"])
    assert task_list(chain).ids == ["prep-0", "prep-1", "ask-0", "ask-1", "other"]


def test_scored_prerequisite_of_the_other_part():
    """A scored task that another part's task needs is repeated there as preparation only."""
    tasks = [Task(task_id="a", domain="x"), Task(task_id="b", domain="x", depends_on=["a"])]
    held_out = task_list(tasks, protocol="table1", part="eval")
    assert (held_out.ids, held_out.preparatory) == (["a", "b"], ["a"])


@given(st.integers(1, 30), st.integers(0, 2**32))
def test_prerequisites_precede(n, seed):
    """Under any ordering every prerequisite stands before its dependents, and nothing is lost."""
    chance = random.Random(seed)  # noqa: S311 - a graph to try, no secret
    tasks = [
        Task(task_id=f"t{i}", domain="d", depends_on=[f"t{j}" for j in range(i) if chance.random() < 0.2])
        for i in range(n)
    ]
    chance.shuffle(tasks)
    ids = task_list(tasks, seed=seed).ids
    assert sorted(ids) == sorted(task.task_id for task in tasks)
    assert all(ids.index(needed) < ids.index(task.task_id) for task in tasks for needed in task.depends_on)


@pytest.mark.parametrize(
    ("tasks", "options", "reason"),
    [
        ([Task(task_id="a", domain="x")] * 2, {}, "twice"),
        ([Task(task_id="a", domain="x", depends_on=["b"])], {}, "'b'"),
        ([Task(task_id="a", domain="x", depends_on=["a"])], {}, "itself"),
        ([Task(task_id="a", domain="x")], {"limit": 0}, "limit"),
    ],
)
def test_bad_lists(tasks, options, reason):
    """A list that cannot be meant is refused with what is wrong."""
    with pytest.raises(BadInput, match=reason):
        task_list(tasks, **options)


def test_circle_is_named():
    """Tasks that need each other are named in order."""
    tasks = [Task(task_id="a", domain="x", depends_on=["b"]), Task(task_id="b", domain="x", depends_on=["a"])]
    with pytest.raises(BadInput, match="a -> b -> a"):
        task_list(tasks)


def test_unknown_protocol():
    """An unknown protocol lists the known ones."""
    with pytest.raises(UnknownName, match="table1"):
        task_list([], protocol="table9")
