"""Every number, list and text that an event records has its bounds: the last value inside is read, the next refused."""

import copy
import json
from collections.abc import Callable
from typing import Any

import plain_fold
import plain_logs
import product_fold
import pytest
from plain_fold import ONE, Data
from plain_logs import Scribe, anchor, at_dot, diagnosis, experience, seed_item, vector

from events.codec import decode, parse_line
from events.errors import ChimeError, FoldMismatch, UnreadableEvent
from events.kinds import KINDS
from events.reading import Reading

AXIS = [2**24, 0, 0, 0, 0]
SHA = "0123456789abcdef" * 4
NEW = experience(AXIS)
PROPOSAL: Data = {"target": "planning-0", "target_sha256": SHA, "text": "Both in one."}
CANDIDATES = [
    {"id": f"planning-{t}", "dot": ONE // 2, "similarity": 0.5, "delta_sum": 10000 * t, "n": t, "adjusted": 0,
     "score": 0.5, "rank": t + 1, "chosen": t == 0}
    for t in range(3)
]  # fmt: skip
OPERATIONS: list[Data] = [
    {"op": "value", "bank": "planning", "id": "planning-0", "delta_e4": 10000, "delta_sum": 10000, "n": 1},
    {"op": "noop", "bank": "planning", "id": "planning-1", "reason": "absent"},
    {"op": "prune", "bank": "planning", "id": "planning-0"},
    {"op": "insert", "bank": "planning", "id": "planning-4", "source": 4},
    {"op": "merge", "bank": "execution", "id": "execution-2", "dot": ONE, "how": "recorded", "source": 4},
]


def _sound() -> dict[str, Data]:
    """One event of each kind that is sound, by kind."""
    scribe = Scribe(seeds=[seed_item("a.planning-3", AXIS), seed_item("a.planning-4", anchor())])
    scribe.write("run", "tasks_listed", {"tasks": []})
    scribe.retrieved("planning", AXIS, 0)
    estimated = {"cached_tokens": 1, "estimated_prompt_tokens": 1, "estimated_completion_tokens": 1}
    scribe.write("episode-0", "planned", {"plan": "p", "usage": plain_logs.USAGE | estimated, "calls": []})
    scribe.acted(0, success=True)
    scribe.diagnosed(diagnosis())
    scribe.fold()
    scribe.abandoned("planning")
    scribe.write("run", "operated", {"action": "pause", "target": "made", "author": "a", "reason": "r"})
    scribe.write("run", "noted", {"topic": "t", "facts": {}})
    events = {event["kind"]: copy.deepcopy(event) for event in scribe.finish()}
    events["seeded"]["data"]["items"] = [
        seed_item("a.planning-3", AXIS, n=2, delta_sum=-20000, experience="Base.\n- One.", bullets=1),
        seed_item("a.planning-4", AXIS),
    ]
    events["retrieved"]["data"]["candidates"] = CANDIDATES
    events["executed"]["data"]["attempts"] = [{"attempt": 1, "reason": "env_crashed"}]
    events["diagnosed"]["data"] |= {
        "retrieved": {"planning": ["planning-0", "planning-1"], "execution": ["execution-0"]},
        "misleading": ["execution-0", "planning-1"],
        "experiences": {"planning": NEW | {"usefulness_e4": 0}, "execution": NEW},
        "merge_proposals": {"planning": PROPOSAL, "execution": None},
    }
    events["folded"]["data"] |= {"episode": 4, "bank_version": 5, "operations": OPERATIONS}
    events["run_started"]["data"]["seed_bank"]["items"] = 2
    return events


SOUND = _sound()


def read(event: Data, path: str, value: Any) -> None:
    """The event with `value` at `path` (names and numbers with dots between), decoded; all else as it is."""
    changed = copy.deepcopy(event)
    place: Any = changed
    steps = path.split(".")
    for step in steps[:-1]:
        place = place[int(step)] if isinstance(place, list) else place[step]
    if isinstance(place, list):
        place[int(steps[-1])] = value
    else:
        place[steps[-1]] = value
    decode(parse_line(plain_fold.plain_json(changed), "line 1"))


def _counts(kind: str, *paths: str, least: int = 0) -> list[tuple[str, str, Any, Any]]:
    return [(kind, f"data.{path}", least, least - 1) for path in paths]


#: kind, where, the last value inside, the next one
PLAIN: list[tuple[str, str, Any, Any]] = [
    *_counts("run_started", "config.policy.version", "config.fold_version", "config.lag", least=1),
    *_counts("run_started", "config.concurrency", "config.epochs", "embedder.dimension", least=1),
    *_counts("run_started", "seed_bank.version", "seed_bank.items"),
    ("run_started", "data.config.lag", "latest", "newest"),
    ("run_started", "data.tasks_total", 2, 1),
    ("run_started", "data.prompts.gate", SHA, SHA[1:]),
    ("run_started", "data.seed_bank.digest", SHA, SHA.upper()),
    *_counts("seeded", "items.1.n", "items.1.bullets", "items.1.sources.0"),
    *_counts("seeded", "items.1.seeded_sources", "items.1.inserted_at", "items.1.changed_at"),
    ("seeded", "data.items.0.delta_sum", 20000, 20001),
    ("seeded", "data.items.0.delta_sum", -20000, -20001),
    ("seeded", "data.items.1.delta_sum", 0, 1),
    ("seeded", "data.items.0.bullets", 1, 2),
    ("seeded", "data.items.0.sources", [0], []),
    ("seeded", "data.items.0.experience_vectors", [vector(AXIS)], []),
    ("seeded", "data.items.0.experience_vectors.0", vector(AXIS), vector([*AXIS, 0])),
    ("seeded", "data.items.0.scenario", "x", " \n"),
    ("seeded", "data.items.0.id", "a.planning-3", "planning-3"),
    ("seeded", "data.items.0.id", "a.planning-3", "a.execution-3"),
    ("seeded", "data.items.0.id", "a.planning-3", "a.planning-4"),
    ("seeded", "data.items.0.id", "a.planning-3", "a.planning-5"),
    ("seeded", "data.items.0.id", "a.planning-3", "a.planning-03"),
    *_counts("retrieved", "bank_version", "candidates.0.n"),
    ("retrieved", "data.query.vector.dim", 5, 8),
    ("retrieved", "data.query.vector.dim", 5, 0),
    ("retrieved", "data.candidates.0.rank", 1, 0),
    ("retrieved", "data.candidates.2.rank", 3, 4),
    ("retrieved", "data.candidates.1.chosen", True, 1),
    ("retrieved", "data.candidates.2.chosen", False, True),
    ("retrieved", "data.candidates.2.id", "planning-2", "planning-1"),
    ("retrieved", "data.candidates.2.id", "planning-2", "planning-02"),
    ("retrieved", "data.candidates.2.delta_sum", -20000, -20001),
    ("retrieved", "data.candidates.0.dot", ONE // 2, ONE // 2 + 32),
    ("retrieved", "data.candidates.0.similarity", 0.5, 0.5000000000000001),
    *_counts("planned", "usage.prompt_tokens", "usage.completion_tokens", "usage.calls", "usage.cached_tokens"),
    *_counts("planned", "usage.estimated_prompt_tokens", "usage.estimated_completion_tokens"),
    *_counts("executed", "steps", "errors"),
    *_counts("executed", "attempts.0.attempt", least=1),
    ("executed", "data.trajectory", SHA, SHA + "\n"),
    ("executed", "data.trajectory", SHA, SHA[:-1] + "g"),
    ("scored", "data.reward", 0, -0.01),
    ("scored", "data.reward", 1, 1.01),
    *_counts("diagnosed", "confidence_e4", "misleading_dropped", "experiences.planning.usefulness_e4"),
    ("diagnosed", "data.confidence_e4", 10000, 10001),
    ("diagnosed", "data.confidence_e4", 10000, 20000),
    ("diagnosed", "data.confidence_e4", 10000, 2**70),
    ("diagnosed", "data.experiences.planning.usefulness_e4", 10000, 10001),
    ("diagnosed", "data.retrieved.planning", ["planning-1", "planning-0"], ["planning-1", "planning-1"]),
    ("diagnosed", "data.retrieved.execution", ["execution-0", "planning-1"], ["execution-0", "execution-0"]),
    ("diagnosed", "data.retrieved.planning.0", "planning-9", "planning-9-"),
    ("diagnosed", "data.misleading", ["planning-0"], ["planning-2"]),
    ("diagnosed", "data.misleading", ["planning-0"], ["planning-0", "planning-0"]),
    ("diagnosed", "data.experiences.planning.acceptable", True, False),
    ("diagnosed", "data.experiences.execution.lint", [], ["too short"]),
    ("diagnosed", "data.experiences.execution.concrete", True, False),
    ("diagnosed", "data.experiences.execution.actionable", True, False),
    ("diagnosed", "data.experiences.execution.scenario", "x", "\u2003"),
    ("diagnosed", "data.experiences.execution.experience", "x", ""),
    ("diagnosed", "data.experiences.execution.scenario_vector", vector(anchor()), vector([2**24])),
    ("diagnosed", "data.experiences.execution.scenario_vector.dim", 5, 6),
    ("diagnosed", "data.merge_proposals.planning.target", "a.planning-0", "a.b.planning-0"),
    ("diagnosed", "data.merge_proposals.planning.target_sha256", SHA, "0x" + SHA[2:]),
    ("diagnosed", "data.merge_proposals.planning.text", "x", " "),
    *_counts("abandoned", "attempts"),
    ("folded", "data.bank_version", 5, 4),
    ("folded", "data.bank_version", 5, 6),
    ("folded", "data.episode", 4, -1),
    ("folded", "data.digest", SHA, SHA + "0"),
    ("folded", "data.operations.0.n", 1, 0),
    ("folded", "data.operations.0.delta_e4", -10000, -10001),
    ("folded", "data.operations.0.delta_e4", 10000, 10001),
    ("folded", "data.operations.0.delta_sum", -10000, -10001),
    ("folded", "data.operations.3.source", 4, 3),
    ("folded", "data.operations.4.source", 4, 5),
    ("folded", "data.operations.4", OPERATIONS[4], OPERATIONS[0]),
    ("folded", "data.operations", OPERATIONS[3:], [*OPERATIONS[3:], OPERATIONS[4]]),
    ("folded", "data.operations", [OPERATIONS[0], OPERATIONS[2]], [OPERATIONS[2], OPERATIONS[0]]),
    *_counts("run_finished", "counts.degraded"),
    ("run_finished", "data.counts.degraded", 1, 2),
    ("run_finished", "data.counts.episodes", 2, 1),
    ("run_finished", "data.counts.abandoned", 1, 2),
    ("run_finished", "data.counts.folded", 2, 3),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "inside", "outside"), PLAIN, ids=lambda value: str(value)[:40])
def test_a_value_outside_its_bounds_is_refused_by_name(kind: str, path: str, inside: Any, outside: Any) -> None:
    """The neighbour inside is read; the one outside makes the event unreadable: its id and its field are named."""
    read(SOUND[kind], path, inside)
    with pytest.raises(UnreadableEvent) as caught:
        read(SOUND[kind], path, outside)
    assert caught.value.where == SOUND[kind]["id"]
    named = [step for step in path.split(".")[1:] if not step.isdigit()]
    assert any(step in caught.value.reason for step in named)


def test_a_refused_number_is_shown() -> None:
    """The message says which event, which field and which value."""
    with pytest.raises(UnreadableEvent, match=r"made/episode-0/\d+: .*confidence_e4`, found 20000$"):
        read(SOUND["diagnosed"], "data.confidence_e4", 20000)
    with pytest.raises(UnreadableEvent, match=r"misleading 'planning-7': not among the retrieved$"):
        read(SOUND["diagnosed"], "data.misleading", ["planning-7"])


DEGRADED = diagnosis(degraded="unreadable", confidence_e4=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("label", "both"),
        ("confidence_e4", 1),
        ("misleading", ["planning-0"]),
        ("misleading_dropped", 1),
        ("experiences", {"planning": None, "execution": NEW}),
        ("merge_proposals", {"planning": PROPOSAL, "execution": None}),
        ("degraded", ""),
    ],
)
def test_a_degraded_diagnosis_holds_no_judgement(field: str, value: Any) -> None:
    """Each part of a judgement beside a reason why there is none is refused; what was retrieved stays."""
    data = DEGRADED | {"retrieved": {"planning": ["planning-0"], "execution": []}}
    read(SOUND["diagnosed"], "data", data)
    with pytest.raises(UnreadableEvent, match=field):
        read(SOUND["diagnosed"], "data", data | {field: value})


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_stands_in_the_stream_of_its_kind(kind: str) -> None:
    """Each kind in each sort of stream: one is right."""
    begun = [] if kind == "run_started" else [SOUND["run_started"]]
    right = []
    for stream in ("run", "projector", "episode-7"):
        version = 1 + sum(event["stream"] == stream for event in begun)
        place = {"stream": stream, "version": version, "position": 1 + len(begun), "id": f"made/{stream}/{version}"}
        try:
            read_in_order([*begun, SOUND[kind] | place])
        except UnreadableEvent as error:
            wrong = "belongs to the stream" in error.reason
        except FoldMismatch:
            wrong = False
        else:
            wrong = False
        if not wrong:
            right.append(stream)
    assert [one.split("-")[0] for one in right] == [KINDS[kind].STREAM]


# --- what takes more than one event -----------------------------------------------------------------------------------


def whole() -> list[Data]:
    """A short log of two episodes with a recall each, sound."""
    scribe = Scribe(seeds=[seed_item("a.planning-3", AXIS), seed_item("a.execution-3", AXIS)])
    for success in (True, False):
        t = scribe.t
        chosen = {}
        for stage in ("planning", "execution"):
            chosen[stage] = scribe.retrieved(stage, AXIS, t)
            if stage == "planning":
                scribe.write(f"episode-{t}", "planned", {"plan": "p", "usage": plain_logs.USAGE, "calls": []})
        scribe.acted(t, success)
        scribe.diagnosed(diagnosis(success=success, label="planning", retrieved=chosen))
        scribe.fold()
    return json.loads(json.dumps(scribe.finish()))  # type: ignore[no-any-return]  # a list of data again


def last(events: list[Data], kind: str) -> Data:
    return [event for event in events if event["kind"] == kind][-1]["data"]  # type: ignore[no-any-return]


def other_bank(events: list[Data]) -> None:
    last(events, "diagnosed")["retrieved"]["planning"] = ["a.execution-3"]


def other_recall(events: list[Data]) -> None:
    last(events, "retrieved")["candidates"][0]["id"] = "a.planning-3"


def other_dimension(events: list[Data]) -> None:
    last(events, "retrieved")["query"]["vector"] = vector([2**24, 0, 0, 0, 0, 0])


def not_unit(events: list[Data]) -> None:
    last(events, "retrieved")["query"]["vector"] = vector([2**23, 0, 0, 0, 0])


def no_base64(events: list[Data]) -> None:
    last(events, "retrieved")["query"]["vector"]["q24"] = "*" * 28


ACROSS: list[tuple[Callable[[list[Data]], object], type[ChimeError], str]] = [
    (other_bank, FoldMismatch, r"episode-1/6: bank of a\.execution-3"),
    (other_recall, FoldMismatch, r"episode-1/3: bank of a\.planning-3"),
    (lambda e: last(e, "diagnosed")["retrieved"].update(planning=[]), FoldMismatch, "6: retrieved.planning"),
    (lambda e: last(e, "diagnosed").update(success=True), FoldMismatch, "episode-1/6: success"),
    (other_dimension, FoldMismatch, "episode-1/3: dimension"),
    (not_unit, UnreadableEvent, "episode-1/3: .*unit length"),
    (no_base64, UnreadableEvent, "episode-1/3: .*base64"),
    (lambda e: last(e, "run_started").update(tasks_total=3), FoldMismatch, "episode-0/1: number of tasks"),
    (lambda e: last(e, "run_finished")["counts"].update(folded=1), FoldMismatch, r"made/run/4: counts"),
    (lambda e: e.append(e[-1] | {"position": len(e) + 1, "version": 5, "id": "made/run/5"}), UnreadableEvent, "run/5"),
    (lambda e: e.insert(1, e[0] | {"position": 2, "version": 2, "id": "made/run/2"}), UnreadableEvent, "run/2"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "said"), ACROSS)
def test_events_that_contradict_each_other_are_found(
    change: Callable[[list[Data]], object], error: type[ChimeError], said: str
) -> None:
    """A log read in order is refused at the first event that does not fit the header or what was said before it."""
    events = whole()
    assert read_in_order(events) == len(events)
    change(events)
    with pytest.raises(error, match=said):
        read_in_order(events)


def read_in_order(events: list[Data]) -> int:
    reading = Reading()
    for recorded in product_fold.recorded_log(events):
        reading.feed(recorded)
    return reading.events


def test_where_the_two_banks_are_one_either_answers() -> None:
    """Under `one-bank` a stage may have retrieved an item that was born in the other."""
    events = whole()
    last(events, "run_started")["config"]["policy"]["name"] = "one-bank"
    other_recall(events)
    last(events, "diagnosed")["retrieved"]["execution"] = ["a.planning-3"]
    assert read_in_order(events) == len(events)


def test_vectors_at_every_dot_are_within_the_bound() -> None:
    """The largest dot that two vectors of the format can have is inside, one unit above what could be is not."""
    for dot in (ONE, ONE + (1 << 38)):
        candidates = [CANDIDATES[0] | {"dot": dot, "similarity": dot / ONE}]
        read(SOUND["retrieved"], "data.candidates", candidates)
    beyond = ONE + (1 << 38) + 1
    with pytest.raises(UnreadableEvent, match="no dot of unit vectors"):
        read(SOUND["retrieved"], "data.candidates", [CANDIDATES[0] | {"dot": beyond, "similarity": beyond / ONE}])
    assert plain_fold.dot(anchor(), at_dot(ONE)) == ONE
