"""What holds of every fold: it splits anywhere, changes no input, knows no clock, keeps values in range, stays in its
stage. The logs are made up (`plain_logs`), so that each law meets every boundary.
"""

import json
from typing import Any

import made_events
import msgspec
import plain_fold
import plain_logs
import product_fold
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from plain_fold import Data
from plain_logs import Scribe, anchor, diagnosis, experience, seed_item

from events import policies
from events.bank import Banks, evolve
from events.codec import parse_line
from events.errors import BadInput, ChimeError, FoldMismatch, UnreadableEvent, VersionGap
from events.fold import Refold, Replay, State, replay, step
from events.ids import attributed, memory_order, seeded_id
from events.kinds import Diagnosed
from events.log import Recorded
from events.parameters import Parameters
from events.recall import recall
from events.vectors import Vector
from events.verify import verify

seeds = st.integers(0, 10**6)


def recorded(seed: int) -> list[Recorded]:
    return product_fold.recorded_log(plain_logs.made_log(seed).events)


def seen(state: State) -> Any:
    """All that a state says, as comparable data."""
    waiting = {t: product_fold.as_data(event) for t, event in state.waiting.items()}
    return (
        state.run,
        state.position,
        state.tasks,
        waiting,
        state.banks.version,
        state.banks.digest(),
        product_fold.items(state.banks),
    )


@given(seeds, st.data())
def test_a_fold_splits_anywhere(seed: int, data: st.DataObject) -> None:
    """fold(a + b) = fold(b, from fold(a)), for every a + b; and the first half's state serves twice."""
    log = recorded(seed)
    cut = data.draw(st.integers(0, len(log)))
    half = replay(log[:cut])
    before = seen(half)
    assert seen(replay(log[cut:], half)) == seen(replay(log))
    assert seen(half) == before
    assert seen(replay(log[cut:], half)) == seen(replay(log))


@given(seeds)
def test_replay_and_deciding_again_end_alike(seed: int) -> None:
    """Evolving from `folded` alone, and deciding from the diagnoses alone, give the same banks."""
    log = recorded(seed)
    assert seen(replay(log))[4:] == seen(State(banks=product_fold.decided(log).banks[-1]))[4:]


@given(seeds)
def test_old_versions_stay_as_they_were(seed: int) -> None:
    """No step changes the banks it started from: each version, looked at after the last, has its digest and items."""
    scribe = plain_logs.made_log(seed)
    banks = product_fold.decided(product_fold.recorded_log(scribe.events)).banks
    assert [product_fold.items(one) for one in banks] == [plain_fold.in_order(one) for one in scribe.folding.banks]
    assert [one.digest() for one in banks] == scribe.folding.digests


@given(seeds, st.data())
def test_one_version_can_go_on_in_two_ways(seed: int, data: st.DataObject) -> None:
    """Two futures of one bank share its vectors and do not meet: both, and the past, come out as if alone."""
    scribe = plain_logs.made_log(seed)
    folding = scribe.folding
    banks = product_fold.decided(product_fold.recorded_log(scribe.events)).banks
    diagnoses = [event["data"] for event in scribe.events if event["kind"] == "diagnosed"]
    assume(diagnoses)
    at = data.draw(st.integers(0, len(banks) - 1))
    policy = policies.load(folding.policy, Parameters().changed(folding.parameters))
    for other in data.draw(st.lists(st.sampled_from(diagnoses), min_size=1, max_size=3)):
        theirs = plain_fold.decide(folding.banks[at], at, other, folding.policy, folding.parameters)
        diagnosed = msgspec.convert(other, Diagnosed)
        ours = policy.decide(banks[at], at, diagnosed)
        assert product_fold.as_data(ours) == theirs
        after = evolve(banks[at], diagnosed, ours)
        assert product_fold.items(after) == plain_fold.in_order(plain_fold.evolve(folding.banks[at], at, other, theirs))
    assert [one.digest() for one in banks] == folding.digests


@given(seeds)
def test_values_stay_in_range(seed: int) -> None:
    """V in [-1, 1] at every version: the clip of equation (9) can never bind."""
    for banks in product_fold.decided(recorded(seed)).banks:
        for item in banks:
            assert -1 <= item.value <= 1
            assert abs(item.delta_sum) <= 10000 * item.n


@given(seeds)
def test_an_unattributed_bank_gains_no_item(seed: int) -> None:
    """Under `credit`, whatever appears at t + 1 belongs to a stage in L(a_t); under `outcome`, to t."""
    scribe = plain_logs.made_log(seed)
    folded = product_fold.decided(product_fold.recorded_log(scribe.events))
    ends = {event["stream"]: event for event in scribe.events if event["kind"] in ("diagnosed", "abandoned")}
    for t, (before, after) in enumerate(zip(folded.banks, folded.banks[1:], strict=False)):
        new = {item.id: item.bank for item in after} | {}
        for item in before:
            new.pop(item.id, None)
        end = ends[f"episode-{t}"]
        allowed = attributed(end["data"].get("label", "none"))
        if scribe.policy == "credit":
            assert set(new.values()) <= set(allowed)
        assert set(new) <= {f"planning-{t}", f"execution-{t}"}
        if end["kind"] == "abandoned" or end["data"]["degraded"] is not None:
            assert after.digest() == before.digest()
            assert folded.operations[t] == []


@given(seeds, st.data())
def test_what_the_fold_does_not_read_cannot_change_it(seed: int, data: st.DataObject) -> None:
    """Times, causes, attempts, usage, calls and the order of other episodes' events: another log, the same digests."""
    scribe = plain_logs.made_log(seed)
    events = json.loads(json.dumps(scribe.events))
    for event in events:
        event["at"] = "2031-12-31T23:59:59.999999Z"
        event["cause"], event["attempt"] = None, data.draw(st.integers(1, 3))
        if "usage" in event["data"]:
            event["data"]["usage"] = {"prompt_tokens": None, "completion_tokens": 7, "calls": 3}
            event["data"]["calls"] = ["x"]
    again = product_fold.decided(product_fold.recorded_log(events))
    assert [one.digest() for one in again.banks] == scribe.folding.digests


@given(seeds, st.data())
def test_delivery_in_another_order_gives_the_same_banks(seed: int, data: st.DataObject) -> None:
    """Diagnoses that arrive in any order are folded in stream order."""
    scribe = plain_logs.made_log(seed)
    log = product_fold.recorded_log(scribe.events)
    head = [one for one in log if one.kind in ("run_started", "seeded")]
    ends = data.draw(st.permutations([one for one in log if one.kind in ("diagnosed", "abandoned")]))
    refold = Refold(policies.load(scribe.policy, Parameters().changed(scribe.folding.parameters)))
    operations = [done for one in (*head, *ends) for done in refold.feed(one)]
    assert [t for t, _ in operations] == list(range(len(ends)))
    assert product_fold.as_data([one for _, one in operations]) == scribe.folding.operations
    assert refold.banks.digest() == scribe.folding.digests[-1]


@given(seeds, st.data())
def test_recall_is_the_second_folds(seed: int, data: st.DataObject) -> None:
    """Any query against any version, with any other vector of the log: candidates, ranks and floats are equal."""
    scribe = plain_logs.made_log(seed)
    folded = product_fold.decided(product_fold.recorded_log(scribe.events))
    items = [item for banks in scribe.folding.banks for bank in banks.values() for item in bank.values()]
    assume(items)
    query = data.draw(st.sampled_from(items))["scenario_vector"]
    version = data.draw(st.integers(0, len(folded.banks) - 1))
    changed = {
        name: data.draw(st.sampled_from(plain_logs.CHOICES[name]))
        for name in ("lambda", "alpha", "beta", "top_n", "top_k", "floor", "margin", "near_tie")
    }
    vector = msgspec.convert(plain_logs.vector(query), Vector)
    for stage in ("planning", "execution"):
        found = recall(folded.banks[version], (stage,), vector, Parameters().changed(changed))
        assert product_fold.as_data(found) == plain_fold.recall(scribe.folding.banks[version][stage], query, changed)


@given(st.lists(made_events.memories, max_size=12, unique=True))
def test_ids_have_one_order(ids: list[str]) -> None:
    """By origin, stage, t and k, as the second fold orders them; no two ids are equal in it."""
    assert sorted(ids, key=memory_order) == sorted(ids, key=plain_fold.id_order)
    assert len({memory_order(one) for one in ids}) == len(ids)


def test_the_order_of_ids_spelled_out() -> None:
    """Origin (none first, then code points), planning before execution, t, k (none first), numerically."""
    ids = [
        "planning-2",
        "planning-9",
        "planning-10",
        "planning-10-0",
        "planning-10-9",
        "planning-10-10",
        "execution-0",
        "0.planning-0",
        "a.planning-3",
        "a.execution-1",
        "a-1.planning-0",
        "a1.planning-0",
    ]
    assert sorted(set(ids), key=memory_order) == ids


@pytest.mark.parametrize(
    "text",
    ["", "planning", "planning-", "planning-01", "Planning-1", "planning-1-", "planning-1-01", "a.b.planning-1",
     "A.planning-1", ".planning-1", "-a.planning-1", "planning-1 ", "planning-1\n", "planning-१",
     "a" * 64 + ".planning-1"],
)  # fmt: skip
def test_what_is_no_memory_id(text: str) -> None:
    """Padded, foreign or incomplete ids are refused."""
    with pytest.raises(BadInput):
        memory_order(text)


@given(made_events.memories, made_events.runs, made_events.runs)
def test_an_origin_is_given_once(memory: str, first: str, second: str) -> None:
    """An id without origin gets it, an id with one keeps it through any number of forks."""
    once = seeded_id(first, memory)  # type: ignore[arg-type]  # plain strings
    assert once == (memory if "." in memory else f"{first}.{memory}")
    assert seeded_id(second, once) == once  # type: ignore[arg-type]  # plain strings


def wrong_operation() -> list[Data]:
    scribe = Scribe(seeds=[seed_item("old.planning-1", anchor())])
    scribe.episode(retrieved={"planning": ["old.planning-1"], "execution": []})
    return scribe.finish()


def test_verify_names_the_first_event_that_differs() -> None:
    """A changed operation, digest, candidate, position or version is refused by the id of its event."""
    cases: list[tuple[str, type[ChimeError], str, Any]] = [
        ("operations", FoldMismatch, "made/projector/1", lambda e: e["data"]["operations"].clear()),
        ("digest", FoldMismatch, "made/projector/1", lambda e: e["data"].update(digest="0" * 64)),
        ("bank version", UnreadableEvent, "made/projector/1", lambda e: e["data"].update(bank_version=2)),
        ("episode", FoldMismatch, "made/projector/1", lambda e: e["data"].update(episode=1, bank_version=2)),
        ("position", VersionGap, "made/projector/1", lambda e: e.update(position=9)),
        ("version", VersionGap, "made/projector/2", lambda e: e.update(version=2, id="made/projector/2")),
    ]
    for what, error, where, change in cases:
        events = wrong_operation()
        change(next(event for event in events if event["kind"] == "folded"))
        with pytest.raises(error) as caught:
            verify(product_fold.recorded_log(events))
        assert where in str(caught.value), what
    verify(product_fold.recorded_log(wrong_operation()))


@given(seeds, st.data())
def test_verify_finds_any_changed_recall_or_operation(seed: int, data: st.DataObject) -> None:
    """One number of one candidate or operation is another: `verify` raises, and names that event."""
    events = json.loads(json.dumps(plain_logs.made_log(seed).events))
    holders = [
        (event, part)
        for event in events
        if event["kind"] in ("retrieved", "folded")
        for part in event["data"].get("candidates", event["data"].get("operations"))
    ]
    assume(holders)
    event, part = data.draw(st.sampled_from(holders))
    key = data.draw(st.sampled_from([k for k, v in part.items() if isinstance(v, int | float)] or ["id", "bank"]))
    if key in ("id", "bank"):
        part["bank"] = "execution" if part["bank"] == "planning" else "planning"
    elif isinstance(part[key], bool):
        part[key] = not part[key]
    else:
        part[key] += 1
    with pytest.raises((FoldMismatch, UnreadableEvent), match=event["id"]):
        verify(product_fold.recorded_log(events))


def damaged(event: Data, data: st.DataObject) -> None:
    """One value of the event's data, at any depth, replaced by any other."""
    place: Any = event["data"]
    while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.integers(0, 3)):
            place = place[key]
            continue
        numbers = st.sampled_from((0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e300))
        near = st.sampled_from(("planning", "execution", "both", "none", "planning-1", "", "x"))
        place[key] = data.draw(st.one_of(made_events.json_values, numbers, near))
        return


def shuffled(events: list[Data], data: st.DataObject) -> list[Data]:
    """As they are, or with one dropped, one doubled, or all moved; in places that fit or in those they had."""
    order = list(range(len(events)))
    match data.draw(st.sampled_from(("as is", "drop", "double", "swap"))):
        case "drop":
            order.pop(data.draw(st.integers(0, len(order) - 1)))
        case "double":
            order.append(data.draw(st.sampled_from(order)))
        case "swap":
            order = data.draw(st.permutations(order))
        case _:
            pass
    out = [json.loads(json.dumps(events[at])) for at in order]
    if data.draw(st.booleans()):  # so that the fold itself meets them, and not the check of places
        streams: dict[str, int] = {}
        for position, event in enumerate(out, 1):
            streams[event["stream"]] = streams.get(event["stream"], 0) + 1
            event.update(position=position, version=streams[event["stream"]])
            event["id"] = f"{event['run']}/{event['stream']}/{event['version']}"
    return out


@given(st.integers(0, 40), st.data())
def test_a_hostile_log_raises_our_errors_only(seed: int, data: st.DataObject) -> None:
    """Values replaced at any depth, events dropped, doubled or moved: refused by name, or read; never a crash."""
    events = json.loads(json.dumps(plain_logs.made_log(seed, episodes=5).events))
    for _ in range(data.draw(st.integers(0, 2))):
        damaged(data.draw(st.sampled_from(events)), data)
    lines = [json.dumps(event).encode("utf-8", "surrogatepass") for event in shuffled(events, data)]
    for reader in (verify, replay):
        try:
            reader([parse_line(line, "a line") for line in lines])
        except ChimeError as error:
            assert str(error)  # noqa: PT017 - which of our errors it is depends on the log


@given(seeds)
def test_a_replay_is_what_its_steps_are(seed: int) -> None:
    """A replay reads a diagnosis when a fold looks into it: what it says and holds after any event is the same."""
    replayed, stepped = Replay(), State()
    for event in recorded(seed):
        replayed.feed(event)
        stepped = step(stepped, event)
        assert product_fold.items(replayed.banks) == product_fold.items(stepped.banks)
        if event.position % 5 == 0:
            assert seen(replayed.state) == seen(stepped)
    assert seen(replayed.state) == seen(stepped)


@given(seeds)
def test_a_replay_reads_each_diagnosis_that_goes_into_a_bank(seed: int) -> None:
    """A diagnosis that is spoiled: the banks are the same without it, or its event is named; the rest refuse it."""
    log = recorded(seed)
    whole = replay(log).banks.digest()
    for at, event in enumerate(log):
        if event.kind == "diagnosed":
            spoiled = [*log[:at], replace(event, data=b'{"label":1}'), *log[at + 1 :]]
            with pytest.raises(UnreadableEvent, match=event.id):
                verify(spoiled)
            try:
                assert replay(spoiled).banks.digest() == whole
            except UnreadableEvent as error:
                assert event.id in str(error)  # noqa: PT017 - which of the two depends on the log


def test_a_diagnosis_that_waits_is_read_for_whoever_asks_what_waits() -> None:
    """The state of a replay holds every diagnosis that is not folded yet: one that is none is refused then."""
    scribe = Scribe()
    scribe.diagnosed(diagnosis())
    log = product_fold.recorded_log(scribe.events)
    replayed = Replay()
    for event in [*log[:-1], replace(log[-1], data=b"{}")]:
        replayed.feed(event)
    with pytest.raises(UnreadableEvent, match="made/episode-0/"):
        _ = replayed.state


def test_an_empty_log_is_an_empty_state() -> None:
    """Nothing to fold: version 0, no items, no header."""
    state = replay([])
    assert (state.header, len(state.banks), state.banks.version, state.position) == (None, 0, 0, 0)
    assert Banks().digest() == plain_fold.digest(plain_fold.empty())


def test_a_diagnosis_waits_for_its_turn() -> None:
    """Episode 1 ends before episode 0: nothing is folded until 0 is there, then both are."""
    scribe = Scribe()
    scribe.diagnosed(diagnosis(label="planning", experiences={"planning": experience(anchor()), "execution": None}), 1)
    scribe.diagnosed(diagnosis(), 0)
    first = replay(product_fold.recorded_log(scribe.events)[:2])
    assert sorted(first.waiting) == [1]
    folded_one = step(first, product_fold.recorded_log(scribe.events)[2])
    assert sorted(folded_one.waiting) == [0, 1]
    assert first.banks.version == folded_one.banks.version == 0


@pytest.mark.parametrize("folded", [True, False])
def test_a_seed_bank_after_an_episode_is_refused(folded: bool) -> None:
    """`seeded` makes version 0: once an episode has ended it is named and refused, and no version is lost."""
    scribe = Scribe()
    scribe.diagnosed(diagnosis())
    if folded:
        scribe.fold()
    scribe.write("run", "seeded", {"items": [seed_item("old.planning-1", anchor())]})
    with pytest.raises(UnreadableEvent, match=r"made/run/2: a seed bank comes before any episode"):
        replay(product_fold.recorded_log(scribe.events))


def test_a_second_header_is_refused() -> None:
    """One run, one header: another `run_started` is named."""
    scribe = Scribe()
    scribe.write("run", "run_started", scribe.events[0]["data"])
    with pytest.raises(UnreadableEvent, match=r"made/run/2: the log has begun already"):
        replay(product_fold.recorded_log(scribe.events))
