"""The newest banks of a replay: whoever looks sees what waits beside the items, and a fold that fails is undone."""

import json
from collections.abc import Callable
from typing import Any

import plain_logs
import product_fold
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from events.bank import Banks
from events.codec import canonical
from events.errors import FoldMismatch
from events.fold import Replay, State, step
from events.log import Recorded

seeds = st.integers(0, 10**6)

#: what makes an operation of a fold one that does not fit
SPOILT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another sum": lambda one: one | {"delta_sum": one.get("delta_sum", 0) + 1},
    "another count": lambda one: one | {"n": one.get("n", 0) + 1},
    "an item that is not there": lambda one: one | {"id": "planning-999999"},
    "no memory id": lambda one: one | {"id": "planning"},
    "another bank": lambda one: one | {"bank": "execution" if one["bank"] == "planning" else "planning"},
    "another source": lambda one: one | {"source": one.get("source", 0) + 1},
}


def recorded(seed: int) -> list[Recorded]:
    return product_fold.recorded_log(plain_logs.made_log(seed).events)


def seen(banks: Banks) -> Any:
    return banks.version, banks.digest(), product_fold.items(banks)


@given(seeds, st.data())
def test_whoever_looks_sees_every_fold(seed: int, data: st.DataObject) -> None:
    """Looked at after any of the events, and after none: the banks that each fold alone would have made."""
    log = recorded(seed)
    looks = data.draw(st.sets(st.integers(0, len(log))))
    replayed, stepped = Replay(), State()
    looked: list[tuple[Banks, Any]] = []
    for at, event in enumerate(log):
        replayed.feed(event)
        stepped = step(stepped, event)
        assert replayed.version == stepped.banks.version
        if at in looks:
            looked.append((replayed.banks, seen(stepped.banks)))
    assert seen(replayed.banks) == seen(stepped.banks)
    assert [seen(banks) for banks, _ in looked] == [then for _, then in looked]


@given(seeds, st.sampled_from(sorted(SPOILT)), st.booleans())
def test_a_fold_that_does_not_fit_changes_nothing(seed: int, how: str, looking: bool) -> None:
    """Whatever of it was applied is undone, and the error is the one of a fold by itself; the true one follows."""
    replayed, stepped = Replay(), State()
    for event in recorded(seed):
        if event.kind == "folded":
            for spoilt in _spoilt(event, SPOILT[how]):
                with pytest.raises(FoldMismatch) as alone:
                    step(stepped, spoilt)
                with pytest.raises(FoldMismatch) as running:
                    replayed.feed(spoilt)
                assert str(running.value) == str(alone.value)
                if looking:
                    assert seen(replayed.banks) == seen(stepped.banks)
        replayed.feed(event)
        stepped = step(stepped, event)
    assert seen(replayed.banks) == seen(stepped.banks)


def _spoilt(folded: Recorded, how: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Recorded]:
    """The fold with one of its values or recorded merges spoilt, each in turn, where that matters."""
    data = json.loads(folded.data)
    found = []
    for at, one in enumerate(operations := data["operations"]):
        if one["op"] == "value" or (one["op"] == "merge" and one["how"] == "recorded"):
            other = how(one)
            if set(other) == set(one):
                changed = data | {"operations": [*operations[:at], other, *operations[at + 1 :]]}
                found.append(replace(folded, data=canonical(changed)))
    return found


def test_the_same_value_twice_in_one_fold_is_refused() -> None:
    """The second one is held against what the first one has made of the item."""
    for event, before in _folds_with_values():
        data = json.loads(event.data)
        first = next(one for one in data["operations"] if one["op"] == "value")
        doubled = replace(event, data=canonical(data | {"operations": [first, *data["operations"]]}))
        with pytest.raises(FoldMismatch, match="sum and count"):
            before.feed(doubled)
        before.feed(event)


def _folds_with_values() -> list[tuple[Recorded, Replay]]:
    """Folds that value an item, each with a replay of what comes before."""
    found = []
    for seed in range(5):
        log = recorded(seed)
        for at, event in enumerate(log):
            if event.kind == "folded" and b'"op":"value"' in event.data:
                before = Replay()
                for one in log[:at]:
                    before.feed(one)
                found.append((event, before))
    assert found
    return found
