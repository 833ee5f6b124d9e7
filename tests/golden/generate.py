"""Writes the golden logs of the newest schema: small complete runs, folded by the second fold, laid out by the codec.

    PYTHONPATH=.:tests/events/plain python tests/golden/generate.py

It never touches a file that exists: a golden log is written once and refolded for ever. A kind that gets a new schema
number gets a new folder here, next to the old one.
"""

import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from plain_fold import Data
from plain_logs import TEXTS, USAGE, Scribe, anchor, at_dot, diagnosis, experience, seed_item, vector

from events.codec import draft, export_line, recorded
from events.ids import RunId, StreamId
from events.kinds import KINDS

FOLDER = Path(__file__).parent / "schema-1"

#: scenarios: HERE and NEAR merge (0.95), FAR is found (0.5) and merges with nothing, SIDE is found by nothing
HERE, NEAR, FAR, SIDE = anchor(), at_dot(267401243813478), at_dot(140737488355328, side=1), anchor(turn=2)
#: experiences, at right angles to each other
FIRST, SECOND, THIRD = anchor(turn=1), anchor(turn=3), anchor(turn=4)


def news(planning: Data | None = None, execution: Data | None = None) -> Data:
    return {"planning": planning, "execution": execution}


def acted(scribe: Scribe, t: int, query: Sequence[int], success: bool, until: str = "scored") -> Data:
    """Writes what an act job writes of episode `t`, up to and with the kind `until`; the chosen ids by stage."""
    read = 0 if scribe.frozen else max(0, t + 1 - int(scribe.lag))
    stream, chosen = f"episode-{t}", dict[str, Any]()
    chosen["planning"] = scribe.retrieved("planning", query, read, t)
    if until == "retrieved":
        return chosen
    scribe.write(stream, "planned", {"plan": f"1. {TEXTS[t % 6]}", "usage": USAGE, "calls": [f"{stream}/planner/1"]})
    chosen["execution"] = scribe.retrieved("execution", query, read, t)
    if until == "planned":
        return chosen
    scribe.acted(t, success)
    return chosen


def played(scribe: Scribe, query: Sequence[int], success: bool = True, **changes: Any) -> Data:
    """One whole episode, folded at once (lag 1 or more); the chosen ids."""
    t = scribe.t
    chosen = acted(scribe, t, query, success)
    calls = [f"episode-{t}/gate/1"]
    scribe.diagnosed(diagnosis(success=success, retrieved=chosen, calls=calls, **changes))
    scribe.fold()
    return chosen


def lessons(scribe: Scribe) -> None:
    """Inserts, an appended and a recorded merge, credit, blame, a prune, and each reason for a discard."""
    both = news(experience(HERE, FIRST, TEXTS[1]), experience(HERE, FIRST, TEXTS[2]))
    played(scribe, SIDE, label="both", experiences=both)
    played(scribe, HERE, label="planning", confidence_e4=7500, experiences=news(experience(NEAR, SECOND, TEXTS[3])))
    played(scribe, HERE, label="planning", confidence_e4=5000, experiences=news(experience(NEAR, FIRST, TEXTS[4])))
    far = news(None, experience(FAR, THIRD, TEXTS[5]))
    played(scribe, HERE, success=False, label="execution", confidence_e4=9000, experiences=far)
    blamed = ["execution-0"]
    played(scribe, HERE, success=False, misleading=blamed, misleading_dropped=1, confidence_e4=10000)
    played(scribe, HERE, success=False, label="both", misleading=blamed, confidence_e4=4999, experiences=both)
    bad = experience(SIDE, THIRD, "Short.", lint=["shorter than 20"], acceptable=False)
    played(scribe, HERE, label="planning", experiences=news(bad))
    played(scribe, FAR, label="both", confidence_e4=6000, experiences=news(experience(SIDE, SECOND, TEXTS[0])))


def credit() -> Scribe:
    """CHIME with the defaults and lag 2: every rule, and every kind that a run may hold."""
    scribe = Scribe(run="golden-credit", lag=2)
    scribe.write("run", "tasks_listed", {"tasks": ["toy-2", "toy-3"]})
    scribe.events[0]["data"]["tasks_total"] = 4
    scribe.write("run", "noted", {"topic": "endpoint", "facts": {"json_schema": True, "latency_s": 0.25}})
    lessons(scribe)
    operated = {"action": "pause", "target": "golden-credit", "author": "anna", "reason": "lunch"}
    scribe.write("run", "operated", operated)
    return scribe


def outcome() -> Scribe:
    """The same lessons without a gate."""
    scribe = Scribe(run="golden-outcome", policy="outcome")
    lessons(scribe)
    return scribe


def seeds() -> list[Data]:
    old = [
        seed_item("north.planning-9", at_dot(253000000000000), n=3, delta_sum=15000, sources=[9, 12]),
        seed_item("north.planning-10", at_dot(253000000000000, side=1), n=2, delta_sum=-2000),
        seed_item("north-1.planning-0", FAR, experience=TEXTS[3]),
        seed_item("north.execution-9-1", HERE, n=1, delta_sum=10000),
    ]
    full = seed_item("north.execution-9-2", SIDE, experience=TEXTS[0] + f"\n- {TEXTS[1]}" * 5, bullets=5)
    return [*old, full | {"experience_vectors": [vector(FIRST), vector(SECOND)]}]


def seeded() -> Scribe:
    """A run that starts from another's bank and rewrites on merging: fresh, then stale; a full item."""
    scribe = Scribe(run="golden-seeded", parameters={"merge_text": "rewrite"}, lag=3, seeds=seeds())
    target = "north.planning-9"
    for text, new in ((TEXTS[0], SECOND), ("gone meanwhile", THIRD)):
        proposal = {"target": target, "target_sha256": sha256(text.encode()).hexdigest(), "text": TEXTS[2]}
        played(
            scribe,
            HERE,
            label="planning",
            experiences=news(experience(HERE, new, TEXTS[4])),
            merge_proposals=news(proposal),
        )
    played(scribe, SIDE, label="execution", experiences=news(None, experience(SIDE, THIRD, TEXTS[1])))
    played(scribe, HERE, success=False, misleading=["north.planning-10"], confidence_e4=3001)
    played(scribe, HERE, label="both", experiences=news(experience(FIRST, FIRST), experience(FIRST, HERE)))
    return scribe


def frozen() -> Scribe:
    """An evaluation: version 0 throughout, no gate, nothing learnt."""
    scribe = Scribe(run="golden-frozen", frozen=True, lag=32, seeds=seeds())
    for query in (HERE, FAR, SIDE):
        played(scribe, query, label="none", confidence_e4=0, degraded="frozen")
    return scribe


def abandoned() -> Scribe:
    """Episodes that end early at each stage, and diagnoses without a judgement."""
    scribe = Scribe(run="golden-abandoned")
    played(scribe, HERE, label="both", experiences=news(experience(HERE, FIRST), experience(HERE, SECOND)))
    for until, stage in (("retrieved", "planning"), ("planned", "execution"), ("executed", "scoring")):
        acted(scribe, scribe.t, HERE, success=False, until=until)
        if until == "executed":  # `acted` wrote `scored` too: the episode was lost before it
            scribe.events.pop()
        scribe.abandoned(stage)
        scribe.fold()
    for reason in ("unreadable", "gate_lost"):
        played(scribe, HERE, label="none", confidence_e4=0, degraded=reason)
    played(scribe, HERE, label="execution", confidence_e4=8000, experiences=news(None, experience(NEAR, THIRD)))
    return scribe


def refused() -> Scribe:
    """The credit run, in which one recorded merge says that it appended: the second merge, in episode 2."""
    scribe = credit()
    (folded,) = [e for e in scribe.events if e["kind"] == "folded" and e["data"]["episode"] == 2]
    (merge,) = [one for one in folded["data"]["operations"] if one["op"] == "merge"]
    merge["how"] = "appended"
    return scribe


LOGS: dict[str, Callable[[], Scribe]] = {
    "credit": credit,
    "outcome": outcome,
    "seeded": seeded,
    "frozen": frozen,
    "abandoned": abandoned,
    "refused/wrong-operation": refused,
}


def lines(events: Sequence[Data]) -> bytes:
    """The export of a made log, through the codec."""
    out = b""
    for event in events:
        item = draft(msgspec.convert(event["data"], KINDS[event["kind"]]))
        place = {key: event[key] for key in ("version", "position", "at", "cause", "attempt")}
        out += export_line(recorded(item, run=RunId(event["run"]), stream=StreamId(event["stream"]), **place))
    return out


def main() -> None:
    for name, make in LOGS.items():
        path = FOLDER / f"{name}.jsonl"
        if path.exists():
            sys.stderr.write(f"{path} is there already and stays\n")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines(make().finish()))


if __name__ == "__main__":
    main()
