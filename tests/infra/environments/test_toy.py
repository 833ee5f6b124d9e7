"""The toy environment: deterministic, and judged by its state."""

import json
from collections import Counter
from typing import Any

import pytest

from infra.environments.toy import DOMAINS, FAMILIES, ORDERS_A_FAMILY, Toy, orders

TASKS = [task["task_id"] for task in Toy().tasks()]


def played(messages: list[dict[str, Any]], task_id: str, **options: Any) -> dict[str, Any]:
    """The evaluation after these messages."""
    toy = Toy()
    toy.reset("e", task_id.split("-")[0], task_id, 42, options)
    for message in messages:
        toy.step(message)
    return toy.evaluate()


def test_tasks_are_the_same_every_time() -> None:
    """Two objects list the same orders: ids, families and facts."""
    assert [(order.task_id, order.facts) for order in orders()] == [(o.task_id, o.facts) for o in orders()]
    assert len(set(TASKS)) == len(TASKS) == ORDERS_A_FAMILY * len(FAMILIES) >= 60
    assert sum(Toy().describe()["domains"].values()) == len(TASKS)


@pytest.mark.parametrize("task_id", TASKS)
def test_plan_and_execution_fail_separately(task_id: str) -> None:
    """Right plan and execution score 1; a wrong plan, a wrong execution, both, or nothing at all score 0."""
    answers = Toy().oracle(task_id.split("-")[0], task_id)
    assert played(answers["turns"][0], task_id)["reward"] == 1.0
    for wrong in ("saboteur", "saboteur_plan", "saboteur_both"):
        assert played(answers[wrong][0], task_id)["reward"] == 0.0
    assert played([{"role": "assistant", "content": "Done."}], task_id)["reward"] == 0.0


@pytest.mark.parametrize(("family", "fact", "said", "reward"), [
    ("frozen", "mass", "{:.3f}", 1.0),  # the same number
    ("frozen", "mass", "{:.0f}", 0.0),
    ("fragile", "dock", "{}.0", 0.0),  # a name
    ("fragile", "dock", "0{}", 0.0),
])  # fmt: skip
def test_numbers_are_compared_as_numbers_and_names_as_names(family: str, fact: str, said: str, reward: float) -> None:
    """Whichever of a domain's arguments a family has its convention for."""
    order = next(one for one in orders() if one.family.name == family and float(one.facts["mass"]) % 1)
    written = said.format(float(order.facts["mass"]) if fact == "mass" else order.facts[fact])
    messages = Toy().oracle("warehouse", order.task_id)["turns"][0]
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        arguments = json.loads(call["function"]["arguments"])
        if fact in arguments:
            call["function"]["arguments"] = json.dumps(arguments | {fact: written})
    assert played(messages, order.task_id)["reward"] == reward


def test_families_share_what_must_be_learnt() -> None:
    """Orders of a family need the same preparation and spell the same argument alike."""
    for family in FAMILIES:
        assert family.preparation in DOMAINS[family.domain].preparations
        assert family.convention in {step.tool for step in DOMAINS[family.domain].lasting}
    assert len({(family.domain, family.preparation) for family in FAMILIES}) == len(FAMILIES)


def test_doing_every_preparation_is_no_plan() -> None:
    """An agent that prepares everything just in case fails."""
    order = orders()[0]
    needed = Toy().oracle("warehouse", order.task_id)["turns"][0]
    extra = {
        "role": "assistant",
        "tool_calls": [
            {"id": name, "function": {"name": name, "arguments": json.dumps({"order": order.facts["order"]})}}
            for name in DOMAINS["warehouse"].preparations
            if name != order.family.preparation
        ],
    }
    assert played([extra, *needed], order.task_id)["reward"] == 0.0


def test_the_gate_can_tell_from_the_answers() -> None:
    """The tools' answers show a missing preparation and a misread argument."""
    order = next(order for order in orders() if order.family.name == "fragile")
    answers, toy = Toy().oracle("warehouse", order.task_id), Toy()
    said = {}
    for way in ("turns", "saboteur", "saboteur_plan"):
        toy.reset("e", "warehouse", order.task_id)
        said[way] = " ".join(m["content"] for step in answers[way][0] for m in toy.step(step)["messages"])
    assert "remark" in said["saboteur_plan"]
    assert "remark" not in said["turns"]
    assert f"{order.facts['mass']} g" in said["saboteur"]


def test_limits_end_an_episode() -> None:
    """Too many steps or errors end it, and it scores 0."""
    toy = Toy()
    wrong = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "fly", "arguments": "{}"}}]}
    toy.reset("e", "shop", "shop-gift-0", options={"max_steps": 2})
    assert toy.step(wrong)["terminated_by"] is None
    assert toy.step(wrong)["terminated_by"] == "max_steps"
    assert toy.evaluate()["reward"] == 0.0
    toy.reset("e", "shop", "shop-gift-0", options={"max_errors": 0})
    assert toy.step(wrong)["terminated_by"] == "too_many_errors"


@pytest.mark.parametrize("arguments", ["{", "[]", '"x"', "{}", '{"order": "nobody"}', "null"])
def test_calls_that_make_no_sense_are_answered(arguments: str) -> None:
    """Whatever a model writes as arguments is answered with an error, and nothing happens."""
    toy = Toy()
    toy.reset("e", "shop", "shop-gift-0")
    call = {"id": "1", "function": {"name": "verify", "arguments": arguments}}
    result = toy.step({"role": "assistant", "tool_calls": [call]})
    assert result["messages"][0]["content"].startswith("error:")
    assert result["errors"] == 1


def test_texts_tell_orders_apart() -> None:
    """No two tasks have the same text, so an answer key can go by it."""
    assert max(Counter(order.text for order in orders()).values()) == 1
