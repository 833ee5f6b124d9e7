"""A second fold and recall, written from docs/events.md alone: plain integers and fractions, slow and obviously right.

It shares no code with `events`: it reads the JSON data of events (as `json.loads` gives it) and knows nothing of
structs, arrays or caches. Whatever it and the product disagree about, one of them has misread the format.
"""

import base64
import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

#: the JSON data of one event, or of a part of it
Data = dict[str, Any]
#: id -> item: the fields of `memory list` (no value) with `scenario_vector` and `experience_vectors` as integers
Bank = dict[str, Data]
#: stage -> bank
Banks = dict[str, Bank]
#: name -> what `config.policy.parameters` holds
Parameters = Mapping[str, int | str]

STAGES = ("planning", "execution")
ONE = 2**48

#: the parameters of CHIME, as docs/events.md lists them
DEFAULTS: dict[str, int | str] = {
    "lambda": 3,
    "alpha": 1,
    "beta": "0.2",
    "top_n": 20,
    "top_k": 3,
    "floor": "0.3",
    "margin": "0.03",
    "near_tie": "score",
    "theta_conf": "0.5",
    "novelty": "0.1",
    "theta_merge": "0.88",
    "n_min": 3,
    "theta_prune": "-0.1",
    "bullets": 5,
    "merge_text": "append",
    "addition": "novelty",
    "misleading": "any",
    "neutral": "count",
    "conf_values": "off",
}

_ID = re.compile(r"(?:(.*)\.)?(planning|execution)-(\d+)(?:-(\d+))?")


# --- numbers, texts, ids ----------------------------------------------------------------------------------------------


@cache
def _decimal(written: int | str) -> Fraction:
    return Fraction(written)


def number(parameters: Parameters, name: str) -> Fraction:
    """The parameter as the decimal that was written."""
    return _decimal(parameters.get(name, DEFAULTS[name]))


def mode(parameters: Parameters, name: str) -> str:
    return str(parameters.get(name, DEFAULTS[name]))


def nearest(exact: Fraction) -> float | int:
    """The nearest float64, and an integer where that is one: as the log writes numbers."""
    rounded = float(exact)
    return int(rounded) if rounded.is_integer() else rounded


def integers(vector: Data) -> tuple[int, ...]:
    """The components x 2^24 of `{"dim", "q24"}`."""
    return struct.unpack(f"<{vector['dim']}i", base64.b64decode(vector["q24"], validate=True))


def dot(a: Sequence[int], b: Sequence[int]) -> int:
    """In units of 2^-48."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def id_order(memory: str) -> tuple[Any, ...]:
    """Origin (none first, code points), planning before execution, t, k (none first), numerically."""
    match = _ID.fullmatch(memory)
    assert match is not None, memory
    origin, stage, t, k = match.groups()
    return (origin is not None, origin or "", STAGES.index(stage), int(t), -1 if k is None else int(k))


def plain_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8")


def text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def vector_sha256(vector: Sequence[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(vector)}i", *vector)).hexdigest()


# --- banks ------------------------------------------------------------------------------------------------------------


def empty() -> Banks:
    return {stage: {} for stage in STAGES}


def in_order(banks: Banks) -> list[Data]:
    """The items of both banks together, in id order."""
    return sorted((item for stage in STAGES for item in banks[stage].values()), key=lambda item: id_order(item["id"]))


def value(item: Data) -> Fraction:
    """V of equation (9): the mean feedback, 0 without any."""
    return Fraction(item["delta_sum"], 10000 * item["n"]) if item["n"] else Fraction(0)


def item_bytes(item: Data) -> bytes:
    """The canonical byte form of an item."""
    form = {k: v for k, v in item.items() if k not in ("scenario_vector", "experience_vectors")}
    form["scenario_vector"] = vector_sha256(item["scenario_vector"])
    form["experience_vectors"] = [vector_sha256(vector) for vector in item["experience_vectors"]]
    return plain_json(form)


def digest(banks: Banks) -> str:
    hashes = b"".join(hashlib.sha256(item_bytes(item)).digest() for item in in_order(banks))
    return hashlib.sha256(hashes).hexdigest()


def listed(banks: Banks) -> list[Data]:
    """What `memory list --json` shows under `items`."""
    return [
        {k: v for k, v in item.items() if not k.endswith(("_vector", "_vectors"))} | {"value": nearest(value(item))}
        for item in in_order(banks)
    ]


def copied(banks: Banks) -> Banks:
    """Banks to change; what an item holds is replaced, and never changed in place."""
    return {stage: {memory: dict(item) for memory, item in bank.items()} for stage, bank in banks.items()}


def seeded(banks: Banks, items: Sequence[Data]) -> Banks:
    """`banks` with the items of one `seeded` event."""
    after = copied(banks)
    for item in items:
        after[item["bank"]][item["id"]] = {
            **item,
            "seeded_sources": len(item["sources"]),
            "inserted_at": 0,
            "changed_at": 0,
            "scenario_vector": integers(item["scenario_vector"]),
            "experience_vectors": [integers(vector) for vector in item["experience_vectors"]],
        }
    return after


# --- recall: equation (5) and the near-tie step -----------------------------------------------------------------------


def adjusted(item: Data, parameters: Parameters) -> Fraction:
    """V n / (n + lambda)."""
    below = 10000 * (item["n"] + number(parameters, "lambda"))
    return Fraction(item["delta_sum"]) / below if below else Fraction(0)


def score(item: Data, query: Sequence[int], parameters: Parameters) -> Fraction:
    """Equation (5)."""
    beta = number(parameters, "beta")
    effect = number(parameters, "alpha") * adjusted(item, parameters)
    return Fraction(dot(query, item["scenario_vector"]), ONE) * (1 + max(-beta, min(beta, effect)))


def recall(bank: Bank, query: Sequence[int], parameters: Parameters) -> list[Data]:
    """The candidates of `retrieved`, by rank."""

    def similarity(item: Data) -> Fraction:
        return Fraction(dot(query, item["scenario_vector"]), ONE)

    above = [item for item in bank.values() if similarity(item) >= number(parameters, "floor")]
    above.sort(key=lambda item: (-similarity(item), id_order(item["id"])))
    found = above[: int(number(parameters, "top_n"))]
    scores = {item["id"]: score(item, query, parameters) for item in found}

    match mode(parameters, "near_tie"):
        case "off":
            found.sort(key=lambda item: (-scores[item["id"]], id_order(item["id"])))
        case "score":
            found = grouped(
                found,
                {item["id"]: scores[item["id"]] for item in found},
                number(parameters, "margin"),
                lambda item: (-adjusted(item, parameters), -similarity(item), id_order(item["id"])),
            )
        case "similarity":
            found = grouped(
                found,
                {item["id"]: similarity(item) for item in found},
                number(parameters, "margin"),
                lambda item: (-scores[item["id"]], -similarity(item), id_order(item["id"])),
            )
        case other:
            raise AssertionError(other)
    return [
        {
            "id": item["id"],
            "dot": dot(query, item["scenario_vector"]),
            "similarity": nearest(similarity(item)),
            "delta_sum": item["delta_sum"],
            "n": item["n"],
            "adjusted": nearest(adjusted(item, parameters)),
            "score": nearest(scores[item["id"]]),
            "rank": rank,
            "chosen": rank <= int(number(parameters, "top_k")),
        }
        for rank, item in enumerate(found, start=1)
    ]


def grouped(items: list[Data], by: Mapping[str, Fraction], margin: Fraction, inside: Any) -> list[Data]:
    """Walk down `by`; a group holds every item within `margin` of its first; `inside` orders a group."""
    left = sorted(items, key=lambda item: -by[item["id"]])
    ordered: list[Data] = []
    while left:
        first = by[left[0]["id"]]
        group = [item for item in left if first - by[item["id"]] <= margin]
        left = left[len(group) :]
        ordered += sorted(group, key=inside)
    return ordered


# --- decide: equations (7), (8), (9), (10) ----------------------------------------------------------------------------


def attributed(label: str) -> tuple[str, ...]:
    """L(a) of equation (7)."""
    return {"planning": ("planning",), "execution": ("execution",), "both": STAGES, "none": ()}[label]


def decide(banks: Banks, t: int, diagnosed: Data, policy: str, parameters: Parameters) -> list[Data]:
    """The operations of `folded` for episode `t`."""
    if diagnosed["degraded"] is not None:
        return []
    assert policy in ("credit", "outcome"), policy
    if policy == "outcome":
        diagnosed = {**diagnosed, "label": "both", "confidence_e4": 10000, "misleading": []}
    operations: list[Data] = []
    now = copied(banks)

    def happen(operation: Data) -> None:
        operations.append(operation)
        evolve_once(now, t, diagnosed, operation)

    # 1. values
    for stage in STAGES:
        for memory in diagnosed["retrieved"][stage]:
            delta = feedback(memory, stage, diagnosed, parameters)
            if delta == 0 and diagnosed["label"] == "none" and mode(parameters, "neutral") == "skip_none":
                continue  # no feedback: nothing to ignore either
            happen(valued(now[stage].get(memory), stage, memory, delta))
    # 2. prune
    touched = {(op["bank"], op["id"]) for op in operations if op["op"] == "value"}
    for stage, memory in sorted(touched, key=lambda pair: id_order(pair[1])):
        item = now[stage][memory]
        if item["n"] >= number(parameters, "n_min") and value(item) < number(parameters, "theta_prune"):
            happen({"op": "prune", "bank": stage, "id": memory})
    # 3. content
    for stage in attributed(diagnosed["label"]):
        happen(content(now[stage], stage, t, diagnosed, policy, parameters))
    return operations


def valued(item: Data | None, stage: str, memory: str, delta: int) -> Data:
    """Equation (9) for one retrieved item, None if it is gone."""
    if item is None:
        return {"op": "noop", "bank": stage, "id": memory, "reason": "absent"}
    sums = {"delta_sum": item["delta_sum"] + delta, "n": item["n"] + 1}
    return {"op": "value", "bank": stage, "id": memory, "delta_e4": delta, **sums}


def feedback(memory: str, stage: str, diagnosed: Data, parameters: Parameters) -> int:
    """Equation (8), in units of 1e-4."""
    gamma: int = diagnosed["confidence_e4"]
    within = stage in attributed(diagnosed["label"])
    if mode(parameters, "conf_values") == "on" and Fraction(gamma, 10000) < number(parameters, "theta_conf"):
        return 0
    if memory in diagnosed["misleading"] and (within or mode(parameters, "misleading") == "any"):
        return -gamma
    return gamma if diagnosed["success"] and within else 0


def content(bank: Bank, stage: str, t: int, diagnosed: Data, policy: str, parameters: Parameters) -> Data:
    """The one content operation of an attributed stage, against its bank after values and prunes."""
    new = diagnosed["experiences"][stage]
    if new is None:
        return {"op": "discard", "bank": stage, "reason": "missing"}
    if policy != "outcome":
        if Fraction(diagnosed["confidence_e4"], 10000) < number(parameters, "theta_conf"):
            return {"op": "discard", "bank": stage, "reason": "confidence"}
        if not new["acceptable"]:
            return {"op": "discard", "bank": stage, "reason": "unacceptable"}
    key, arrived = integers(new["scenario_vector"]), integers(new["experience_vector"])
    known = [dot(arrived, vector) for item in bank.values() for vector in item["experience_vectors"]]
    if mode(parameters, "addition") == "usefulness":
        novel = Fraction(new.get("usefulness_e4") or 0, 10000) >= number(parameters, "novelty")
    else:
        novel = not known or 1 - Fraction(max(known), ONE) >= number(parameters, "novelty")
    ranked = sorted(bank.values(), key=lambda item: (-dot(key, item["scenario_vector"]), id_order(item["id"])))
    if ranked:
        target = ranked[0]
        near = dot(key, target["scenario_vector"])
        if Fraction(near, ONE) > number(parameters, "theta_merge"):
            how = merge_how(target, novel, diagnosed["merge_proposals"][stage], parameters)
            return {"op": "merge", "bank": stage, "id": target["id"], "dot": near, "how": how, "source": t}
    if novel:
        return {"op": "insert", "bank": stage, "id": f"{stage}-{t}", "source": t}
    return {"op": "discard", "bank": stage, "reason": "not_novel"}


def merge_how(target: Data, novel: bool, proposal: Data | None, parameters: Parameters) -> str:
    if not novel:
        return "recorded"
    if (
        mode(parameters, "merge_text") == "rewrite"
        and proposal is not None
        and proposal["target"] == target["id"]
        and proposal["target_sha256"] == text_sha256(target["experience"])
    ):
        return "rewritten"
    return "appended" if target["bullets"] < number(parameters, "bullets") else "recorded"


# --- evolve -----------------------------------------------------------------------------------------------------------


def evolve(banks: Banks, t: int, diagnosed: Data | None, operations: Sequence[Data]) -> Banks:
    """M_{t+1} from M_t; `diagnosed` is None for an abandoned episode."""
    after = copied(banks)
    for operation in operations:
        assert diagnosed is not None
        evolve_once(after, t, diagnosed, operation)
    return after


def evolve_once(banks: Banks, t: int, diagnosed: Data, operation: Data) -> None:
    """`banks` changed by one operation, in place."""
    stage = operation["bank"]
    bank, new = banks[stage], diagnosed["experiences"][stage]
    op: str = operation["op"]
    match op:
        case "value":
            bank[operation["id"]].update(delta_sum=operation["delta_sum"], n=operation["n"], changed_at=t + 1)
        case "prune":
            del bank[operation["id"]]
        case "insert":
            bank[operation["id"]] = {
                "bank": stage,
                "id": operation["id"],
                "scenario": new["scenario"],
                "experience": new["experience"],
                "bullets": 0,
                "scenario_vector": integers(new["scenario_vector"]),
                "experience_vectors": [integers(new["experience_vector"])],
                "delta_sum": 0,
                "n": 0,
                "sources": [operation["source"]],
                "seeded_sources": 0,
                "inserted_at": t + 1,
                "changed_at": t + 1,
            }
        case "merge":
            item = bank[operation["id"]]
            item["sources"] = [*item["sources"], operation["source"]]
            item["changed_at"] = t + 1
            if operation["how"] == "rewritten":
                item.update(experience=diagnosed["merge_proposals"][stage]["text"], bullets=0)
            elif operation["how"] == "appended":
                item.update(experience=item["experience"] + "\n- " + new["experience"], bullets=item["bullets"] + 1)
            if operation["how"] in ("rewritten", "appended"):
                item["experience_vectors"] = [*item["experience_vectors"], integers(new["experience_vector"])]
        case other:
            assert other in ("noop", "discard"), other


# --- a whole log ------------------------------------------------------------------------------------------------------


@dataclass
class Folding:
    """What a log gives: `banks[v]` and `digests[v]` at every version v, `operations[t]` of every episode t."""

    policy: str
    parameters: Parameters
    banks: list[Banks]
    digests: list[str]
    operations: list[list[Data]] = field(default_factory=list)

    def step(self, diagnosed: Data | None) -> None:
        """One episode more; None for an abandoned one."""
        t, before = len(self.operations), self.banks[-1]
        operations = [] if diagnosed is None else decide(before, t, diagnosed, self.policy, self.parameters)
        self.operations.append(operations)
        self.banks.append(evolve(before, t, diagnosed, operations))
        self.digests.append(digest(self.banks[-1]))

    def recall(self, stage: str, bank_version: int, query: Sequence[int]) -> list[Data]:
        return recall(self.banks[bank_version][stage], query, self.parameters)


def fold(events: Sequence[Data]) -> Folding:
    """Fold the diagnoses of `events` (export lines as `json.loads` gives them) in stream order."""
    header = events[0]["data"]
    start, ended = empty(), dict[int, Data | None]()
    for event in events:
        if event["kind"] == "seeded":
            start = seeded(start, event["data"]["items"])
        elif event["kind"] in ("diagnosed", "abandoned"):
            t = int(event["stream"].removeprefix("episode-"))
            ended[t] = event["data"] if event["kind"] == "diagnosed" else None
    policy = header["config"]["policy"]
    folding = Folding(policy["name"], policy["parameters"], [start], [digest(start)])
    while len(folding.operations) in ended:
        folding.step(ended[len(folding.operations)])
    return folding


def differences(events: Sequence[Data]) -> list[str]:
    """Ids of the `folded` and `retrieved` events of a log that hold something else than the fold gives."""
    folding, wrong = fold(events), []
    for event in events:
        data = event["data"]
        if event["kind"] == "folded":
            t = data["episode"]
            if (data["operations"], data["digest"]) != (folding.operations[t], folding.digests[t + 1]):
                wrong.append(event["id"])
        elif event["kind"] == "retrieved":
            query = integers(data["query"]["vector"])
            if data["candidates"] != folding.recall(data["stage"], data["bank_version"], query):
                wrong.append(event["id"])
    return wrong
