"""Whole logs made up for tests: export lines as plain data, folded by `plain_fold` as they are made.

`Scribe` writes one log, event by event. `made_log(seed)` plays a made-up run into it: plausible enough to reach every
rule, nasty enough to sit on every boundary (vectors whose dots are the neighbours of the thresholds, equal dots, ids
pruned meanwhile, stale and fresh merge proposals, seeds with origins, hostile text). Nothing here imports the product.
"""

import base64
import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import plain_fold
from plain_fold import DEFAULTS, ONE, STAGES, Data, Folding

#: dot products that decide: the last below and the first above each threshold of CHIME
FLOOR_BELOW, FLOOR_IN = 84442493013196, 84442493013197
MERGE_NOT, MERGE = 247697979505377, 247697979505378
NOVEL, NOVEL_NOT = 253327479039590, 253327479039591
GAP_TIE, GAP_NO_TIE = 8444249301319, 8444249301320

USAGE: Data = {"prompt_tokens": 10, "completion_tokens": 5, "calls": 1}
TEXTS = (
    "Check the refund window before you cancel a booking.",
    "Größe der Liste prüfen, dann erst löschen – immer.",
    "先查余额，再转账；失败时不要重试同一个调用。",
    'A "quoted" \\ back\\slash, a tab\t, a line\nand a bullet\n- that is none.',
    "emoji 🧠👩‍🚀 and \u2028 separators \u2029 and nul \x00 and del \x7f and \ufffd kept",
    "e\u0301 is not \u00e9, and \u202eright to left\u202c stays as written",
    "x" * 800,
)


# --- vectors ----------------------------------------------------------------------------------------------------------


def vector(components: Sequence[int]) -> Data:
    """`{"dim", "q24"}` of integer components (x 2^24)."""
    raw = struct.pack(f"<{len(components)}i", *components)
    return {"dim": len(components), "q24": base64.b64encode(raw).decode()}


def anchor(dim: int = 5, turn: int = 0) -> list[int]:
    """(2^24, 2^12, 1, 0, ...): of unit length within the rounding, and able to reach any dot exactly (`at_dot`)."""
    return turned([2**24, 2**12, 1] + [0] * (dim - 3), turn)


def at_dot(dot: int, dim: int = 5, turn: int = 0, side: int = 0) -> list[int]:
    """A unit vector y with anchor . y = `dot` exactly, 0 <= dot <= 2^48: dot written in base (2^24, 2^12, 1).

    What is missing to unit length lies on one of the axes that the anchor does not have (`side` says which, and which
    way), so that several vectors have one dot.
    """
    high, rest = divmod(dot, 2**24)
    middle, low = divmod(rest, 2**12)
    free = [0] * (dim - 3)
    left = max(0, ONE - high * high - middle * middle - low * low)
    free[side % (dim - 3)] = math.isqrt(left) * (1 if side // (dim - 3) % 2 == 0 else -1)
    return turned([high, middle, low, *free], turn)


def turned(components: list[int], turn: int) -> list[int]:
    return components[-turn:] + components[:-turn] if turn else components


# --- one log, event by event ------------------------------------------------------------------------------------------


def experience(
    scenario_vector: Sequence[int], experience_vector: Sequence[int] | None = None, text: str = TEXTS[0], **changes: Any
) -> Data:
    """X of `diagnosed.experiences`, acceptable unless `changes` say otherwise."""
    return {
        "scenario": "Bookings with a deadline",
        "experience": text,
        "scenario_vector": vector(scenario_vector),
        "experience_vector": vector(scenario_vector if experience_vector is None else experience_vector),
        "concrete": True,
        "actionable": True,
        "acceptable": True,
        "lint": [],
        "usefulness_e4": None,
    } | changes


def diagnosis(**changes: Any) -> Data:
    """The data of a `diagnosed`: success, label none, certain, nothing retrieved, unless `changes` say otherwise."""
    return {
        "success": True,
        "label": "none",
        "confidence_e4": 10000,
        "retrieved": {"planning": [], "execution": []},
        "misleading": [],
        "misleading_dropped": 0,
        "experiences": {"planning": None, "execution": None},
        "merge_proposals": {"planning": None, "execution": None},
        "degraded": None,
        "usage": USAGE,
        "calls": ["episode-0/gate/1"],
    } | changes


def seed_item(memory: str, scenario_vector: Sequence[int], **changes: Any) -> Data:
    """One item of `seeded`: a single text whose vector is the scenario's, unused, unless `changes` say otherwise."""
    stage = memory.rsplit(".", 1)[-1].split("-")[0]
    item: Data = {
        "bank": stage,
        "id": memory,
        "scenario": "Bookings with a deadline",
        "experience": TEXTS[0],
        "delta_sum": 0,
        "n": 0,
        "bullets": 0,
        "sources": [3],
        "inserted_at": 0,
        "changed_at": 0,
        "scenario_vector": vector(scenario_vector),
        "experience_vectors": [vector(scenario_vector)],
    } | changes
    return {"seeded_sources": len(item["sources"])} | item


@dataclass
class Scribe:
    """Writes a log and folds it on the way: `events` are export lines, as data."""

    run: str = "made"
    dim: int = 5
    policy: str = "credit"
    #: merged into the defaults of CHIME
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    lag: int | str = 1
    frozen: bool = False
    seeds: Sequence[Data] = ()
    events: list[Data] = field(default_factory=list)
    folding: Folding = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = {**DEFAULTS, "lint_min": 20, "lint_max": 800, **self.parameters}
        seeds = sorted(self.seeds, key=lambda item: plain_fold.id_order(item["id"]))
        start = plain_fold.seeded(plain_fold.empty(), seeds)
        self.folding = Folding(self.policy, self.parameters, [start], [plain_fold.digest(start)])
        origin = {"run": "origin", "version": 7, "digest": self.folding.digests[0]} if seeds else None
        self.write("run", "run_started", self._header(origin))
        for half in (seeds[: len(seeds) // 2], seeds[len(seeds) // 2 :]):
            if half:
                self.write("run", "seeded", {"items": half})

    def _header(self, origin: Data | None) -> Data:
        return {
            "config": {
                "policy": {"name": self.policy, "version": 1, "parameters": dict(self.parameters)},
                "lag": self.lag,
                "fold_version": 1,
                "frozen": self.frozen,
                "concurrency": 16,
                "epochs": 1,
                "models": {"planner": {"model": "made-up", "temperature": 0.6}},
                "environment": {"name": "toy", "version": "1"},
                "protocol": {"name": "table1"},
                "ordering": {"seed": 0},
                "limits": {"max_steps": 10},
                "agent": {"planner": "plain"},
                "depends_on": {},
                "preparatory": [],
                "labels": [],
                "operational": {},
            },
            "tasks": ["toy-0", "toy-ü"],
            "tasks_total": 2,
            "prompts": {"gate": "0" * 64},
            "embedder": {"fingerprint": "made-up", "dimension": self.dim},
            "code": "0.1.0",
            "seed_bank": origin,
        }

    def write(self, stream: str, kind: str, data: Data) -> Data:
        version = 1 + sum(event["stream"] == stream for event in self.events)
        event: Data = {
            "id": f"{self.run}/{stream}/{version}",
            "run": self.run,
            "stream": stream,
            "version": version,
            "position": len(self.events) + 1,
            "kind": kind,
            "schema": 1,
            "at": f"2026-01-01T00:{len(self.events) // 60 % 60:02}:{len(self.events) % 60:02}.000000Z",
            "cause": self.events[-1]["id"] if self.events else None,
            "attempt": 1,
            "data": data,
        }
        self.events.append(event)
        return event

    @property
    def t(self) -> int:
        """The episode that is folded next."""
        return len(self.folding.operations)

    def retrieved(self, stage: str, query: Sequence[int], bank_version: int, t: int | None = None) -> list[str]:
        """Writes the recall that the bank at that version gives; the chosen ids."""
        candidates = self.folding.recall(stage, bank_version, query)
        self.write(
            f"episode-{self.t if t is None else t}",
            "retrieved",
            {
                "stage": stage,
                "bank_version": bank_version,
                "query": {"text": TEXTS[1], "vector": vector(query)},
                "candidates": candidates,
                "source": "exact",
            },
        )
        return [candidate["id"] for candidate in candidates if candidate["chosen"]]

    def acted(self, t: int, success: bool) -> None:
        """Writes `executed` and `scored`."""
        stream = f"episode-{t}"
        self.write(
            stream,
            "executed",
            {
                "trajectory": "0" * 64,
                "steps": 3,
                "errors": 0,
                "stop": "done",
                "attempts": [],
                "usage": USAGE,
                "calls": [],
            },
        )
        evaluator = {"name": "toy", "version": "1"}
        scored = {"success": success, "reward": 1 if success else 0.25, "evaluator": evaluator, "breakdown": {}}
        self.write(stream, "scored", scored)

    def diagnosed(self, data: Data, t: int | None = None) -> None:
        self.write(f"episode-{self.t if t is None else t}", "diagnosed", data)

    def abandoned(self, stage: str, t: int | None = None) -> None:
        stream = f"episode-{self.t if t is None else t}"
        self.write(stream, "abandoned", {"stage": stage, "reason": "worker lost", "attempts": 3})

    def fold(self) -> list[Data]:
        """Folds the next episode, writes `folded`; its operations."""
        t = self.t
        end = next(e for e in self.events if e["stream"] == f"episode-{t}" and e["kind"] in ("diagnosed", "abandoned"))
        self.folding.step(end["data"] if end["kind"] == "diagnosed" else None)
        operations, digest = self.folding.operations[t], self.folding.digests[t + 1]
        data = {"episode": t, "bank_version": t + 1, "digest": digest, "operations": operations}
        self.write("projector", "folded", data)
        return operations

    def episode(self, **changes: Any) -> list[Data]:
        """Writes and folds one episode of which only the diagnosis matters; its operations."""
        self.diagnosed(diagnosis(**changes))
        return self.fold()

    def finish(self) -> list[Data]:
        """Writes `run_finished`; the whole log."""
        kinds = [event["kind"] for event in self.events]
        degraded = sum(e["kind"] == "diagnosed" and e["data"]["degraded"] is not None for e in self.events)
        counts = {
            "episodes": len({e["stream"] for e in self.events if e["stream"].startswith("episode-")}),
            "diagnosed": kinds.count("diagnosed"),
            "degraded": degraded,
            "abandoned": kinds.count("abandoned"),
            "folded": kinds.count("folded"),
        }
        self.write("run", "run_finished", {"outcome": "completed", "counts": counts})
        return self.events


# --- a made-up run ----------------------------------------------------------------------------------------------------

#: name -> values worth trying, the default first
CHOICES: dict[str, tuple[int | str, ...]] = {
    "lambda": (3, 1, "0.5", 0, 10),
    "alpha": (1, 0, "0.5", "2.25", 7),
    "beta": ("0.2", 0, "0.05", "0.999"),
    "top_n": (20, 1, 2, 3, 4),
    "top_k": (3, 1, 2, 5, 0),
    "floor": ("0.3", "0.5", 0, "-1", "0.75"),
    "margin": ("0.03", 0, "0.2", "0.0000001", 1),
    "near_tie": ("score", "off", "similarity"),
    "theta_conf": ("0.5", 0, 1, "0.4999", "0.50001"),
    "novelty": ("0.1", 0, "0.25", "0.5", 1),
    "theta_merge": ("0.88", "0.5", "0.75", 1, "0.3", "0.9375"),
    "n_min": (3, 1, 2, 4),
    "theta_prune": ("-0.1", 0, "-0.5", "0.25", "-1"),
    "bullets": (5, 0, 1, 2),
    "addition": ("novelty", "usefulness"),
    "misleading": ("any", "attributed"),
    "neutral": ("count", "skip_none"),
    "conf_values": ("off", "on"),
}


def made_parameters(dice: random.Random) -> dict[str, int | str]:
    """The defaults, or a few of them changed, or most of them."""
    chance = dice.choice((0, 0, 0.15, 0.6))
    given = {name: dice.choice(values) for name, values in CHOICES.items() if dice.random() < chance}
    return given | {"merge_text": dice.choice(("append", "rewrite"))}


def made_vectors(dice: random.Random, dim: int, parameters: Mapping[str, int | str]) -> list[list[int]]:
    """Anchors; around each of them vectors on every threshold, at equal dots, in chains of near ties; and others."""
    merged = {**DEFAULTS, **parameters}
    edges = [Fraction(merged["floor"]), Fraction(merged["theta_merge"]), 1 - Fraction(merged["novelty"])]
    gap = Fraction(merged["margin"]) * ONE
    pool: list[list[int]] = []
    for turn in dice.sample(range(dim), 2):
        pool += [anchor(dim, turn)] * 2
        for edge in edges:
            exact = math.floor(edge * ONE)
            pool += [at_dot(min(max(exact + off, 0), ONE), dim, turn, dice.randrange(4)) for off in (-1, 0, 1, 2)]
        start = dice.randrange(ONE // 2, ONE)
        steps = [start - math.floor(gap * k) + dice.randrange(-1, 2) for k in range(4)]
        pool += [at_dot(min(max(step, 0), ONE), dim, turn, dice.randrange(4)) for step in steps]
        same = dice.randrange(ONE // 2, ONE)
        pool += [at_dot(same, dim, turn, side) for side in range(3)]
    for _ in range(4):
        raw = [dice.gauss(0, 1) for _ in range(dim)]
        length = math.sqrt(sum(x * x for x in raw))
        pool.append([round(x / length * 2**24) for x in raw])
    return dice.sample(pool, dice.randrange(6, len(pool)))


def made_text(dice: random.Random) -> str:
    return dice.choice(TEXTS) if dice.random() < 0.5 else f"{dice.choice(TEXTS)[:300]} {dice.randrange(10**6)}"


def made_seeds(dice: random.Random, vectors: Sequence[Sequence[int]], count: int) -> list[Data]:
    """Items with origins, used and unused, some on the edge of being pruned."""
    seeds: dict[str, Data] = {}
    for _ in range(count):
        k = dice.choice(("", "", "-0", "-10", "-9"))
        memory = f"{dice.choice(('alpha', 'alpha-1', 'beta'))}.{dice.choice(STAGES)}-{dice.choice((9, 10, 100))}{k}"
        n = dice.choice((0, 1, 2, 3, 7))
        bullets = dice.choice((0, 0, 1, 4, 5))
        seeds[memory] = seed_item(
            memory,
            dice.choice(vectors),
            experience=made_text(dice) + "".join(f"\n- {made_text(dice)}" for _ in range(bullets)),
            n=n,
            delta_sum=max(
                -n * 10000, dice.choice((0, -n * 1000, -n * 1000 - 1, n * 10000, dice.randint(-n * 10000, n * 10000)))
            ),
            bullets=bullets,
            sources=dice.sample(range(200), dice.randrange(1, 4)),
            experience_vectors=[vector(dice.choice(vectors)) for _ in range(dice.randrange(1, bullets + 2))],
        )
    return list(seeds.values())


def made_experience(dice: random.Random, vectors: Sequence[Sequence[int]]) -> Data | None:
    if dice.random() < 0.1:
        return None
    concrete, actionable = dice.random() < 0.92, dice.random() < 0.92
    lint = [] if dice.random() < 0.92 else ["too short"]
    return experience(
        dice.choice(vectors),
        dice.choice(vectors),
        made_text(dice),
        scenario=made_text(dice),
        concrete=concrete,
        actionable=actionable,
        acceptable=concrete and actionable and not lint,
        lint=lint,
        usefulness_e4=dice.choice((None, 0, 999, 1000, 1001, 9000)),
    )


def made_proposal(dice: random.Random, scribe: Scribe, stage: str, new: Data | None) -> Data | None:
    """A rewrite against the bank of some version: fresh, stale, for another item, or with a wrong hash."""
    # Under `append` there is none in a log of its own; there are when a log made under `rewrite` is folded again.
    if new is None or dice.random() < (0.3 if scribe.parameters["merge_text"] == "rewrite" else 0.8):
        return None
    banks = scribe.folding.banks
    bank = banks[max(0, len(banks) - dice.choice((1, 1, 1, 2, 3)))][stage]
    if not bank:
        return None
    key = plain_fold.integers(new["scenario_vector"])
    nearest = min(
        bank.values(), key=lambda i: (-plain_fold.dot(key, i["scenario_vector"]), plain_fold.id_order(i["id"]))
    )
    item = nearest if dice.random() < 0.85 else dice.choice(list(bank.values()))
    sha = plain_fold.text_sha256(item["experience"]) if dice.random() < 0.9 else "f" * 64
    return {"target": item["id"], "target_sha256": sha, "text": made_text(dice)}


def made_diagnosis(dice: random.Random, scribe: Scribe, chosen: Data, vectors: Sequence[Sequence[int]]) -> Data:
    """What the gate may say of an episode that retrieved `chosen`."""
    if dice.random() < 0.08:
        gone: Data = {"label": "none", "confidence_e4": 0, "degraded": dice.choice(("unreadable", "timeout"))}
        return diagnosis(success=dice.random() < 0.5, retrieved=chosen, **gone)
    news = {stage: made_experience(dice, vectors) for stage in STAGES}
    ids = sorted({*chosen["planning"], *chosen["execution"]})
    misleading = [memory for memory in ids if dice.random() < 0.3]
    dice.shuffle(misleading)
    return diagnosis(
        success=dice.random() < 0.6,
        label=dice.choice(("planning", "execution", "both", "both", "none")),
        confidence_e4=dice.choice((0, 1, 3000, 4999, 5000, 5001, 10000, 10000, dice.randrange(10001))),
        retrieved=chosen,
        misleading=misleading,
        misleading_dropped=dice.randrange(2),
        experiences=news,
        merge_proposals={stage: made_proposal(dice, scribe, stage, news[stage]) for stage in STAGES},
    )


def made_log(seed: int, episodes: int | None = None) -> Scribe:
    """A whole made-up run, folded; the same for the same seed on every machine."""
    dice = random.Random(seed)  # noqa: S311 - test data
    dim = dice.choice((4, 5, 6))
    parameters = made_parameters(dice)
    vectors = made_vectors(dice, dim, parameters)
    count = dice.choice((0, 0, 0, 1, 3, 9))
    scribe = Scribe(
        dim=dim,
        policy=dice.choice(("credit", "credit", "credit", "outcome")),
        parameters=parameters,
        lag=dice.choice((1, 1, 2, 3, 5, "latest")),
        frozen=dice.random() < 0.03,
        seeds=made_seeds(dice, vectors, count),
    )
    total = episodes or dice.randrange(4, 18)
    ahead = 1 if scribe.lag == 1 else dice.randrange(1, (3 if scribe.lag == "latest" else int(scribe.lag)) + 1)
    for t in range(total):
        made_episode(dice, scribe, t, vectors)
        while scribe.t <= t + 1 - ahead:
            scribe.fold()
    while scribe.t < total:
        scribe.fold()
    scribe.finish()
    return scribe


def made_episode(dice: random.Random, scribe: Scribe, t: int, vectors: Sequence[Sequence[int]]) -> None:
    newest = len(scribe.folding.banks) - 1
    read = newest if scribe.lag == "latest" else max(0, t + 1 - int(scribe.lag))
    read = 0 if scribe.frozen else read
    plays = dice.random() > 0.2
    chosen: Data = {}
    lost = dice.random() < 0.07
    for stage in STAGES:
        if plays:
            chosen[stage] = scribe.retrieved(stage, dice.choice(vectors), read, t)
            if stage == "planning":
                if lost and dice.random() < 0.5:
                    scribe.abandoned("planning", t)
                    return
                scribe.write(f"episode-{t}", "planned", {"plan": made_text(dice), "usage": USAGE, "calls": []})
        else:  # no recall in the log: any id that ever was, and some that never were
            ever = {memory for banks in scribe.folding.banks for memory in banks[stage]} | {f"{stage}-77"}
            chosen[stage] = dice.sample(sorted(ever), min(len(ever), dice.randrange(4)))
    if lost:
        scribe.abandoned("execution" if plays else "planning", t)
        return
    if scribe.frozen:
        gone: Data = {"label": "none", "confidence_e4": 0, "degraded": "frozen"}
        scribe.diagnosed(diagnosis(success=dice.random() < 0.5, retrieved=chosen, **gone), t)
        return
    data = made_diagnosis(dice, scribe, chosen, vectors)
    if plays:
        scribe.acted(t, data["success"])
    scribe.diagnosed(data, t)
