"""The conformance suite: passes what conforms, and names what does not."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.environments import ChildEnvironment, InProcessEnvironment, Limits, conformance, load
from infra.environments.conformance import PROBES, Row, check
from infra.environments.toy import Toy
from runtime.task import Task


async def rows(make: Callable[[Limits], Any], **options: Any) -> dict[str, Row]:
    """All rows by name."""
    return {row.name: row async for row in check(make, **options)}


async def test_the_toy_conforms(tmp_path: Path) -> None:
    """Every row of the built-in environment is good, and every row is there."""
    found = await rows(lambda limits: load("toy", tmp_path, limits=limits, oracle=True), sample=5)
    assert [row for row in found.values() if not row.ok] == []
    assert set(found) >= {
        "describe", "tasks shop", "score shop", "crash", "timeout", "cancel", "garbage line", "huge line",
        "stdout noise", "evaluator exception", "end of input", "huge answer", "no process left behind",
    }  # fmt: skip
    assert found["score shop"].detail == "reference 5/5 scored 1, wrong 5/5 scored 0"


async def test_a_host_that_takes_long_to_start_is_left_in_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How soon it must be gone does not bound its start: what is waited for is that host's end."""
    waited: list[set[int]] = []

    async def noted(pids: set[int]) -> None:
        waited.append(set(pids))

    monkeypatch.setattr(conformance, "_GONE_S", 0.0)
    monkeypatch.setattr(conformance, "_gone", noted)
    pids = set[int]()
    task = Task(task_id="shop-gift-0", domain="shop")
    await PROBES["cancel"](lambda limits: load("toy", tmp_path, limits=limits, oracle=True), task, pids)
    assert (len(pids), waited) == (1, [pids])


async def test_without_reference_solutions_scores_are_not_claimed(tmp_path: Path) -> None:
    """Where no oracle is offered, the row says that nothing was scored."""
    found = await rows(lambda limits: load("toy", tmp_path, limits=limits), sample=5)
    assert found["score shop"].detail.startswith("not scored")
    assert found["stdout noise"].detail.startswith("not checked")


class Generous(Toy):
    """Scores everything 1."""

    def evaluate(self) -> dict[str, Any]:
        super().evaluate()
        return {"reward": 1.0, "success": True}


class Stingy(Toy):
    """Scores everything 0."""

    def evaluate(self) -> dict[str, Any]:
        super().evaluate()
        return {"reward": 0.0, "success": False}


class Forgetful(Toy):
    """Lists fewer tasks than it describes."""

    def tasks(self, domain: str | None = None, split: str | None = None) -> list[dict[str, Any]]:
        return super().tasks(domain, split)[1:]


@pytest.mark.parametrize(
    ("environment", "name", "said"),
    [
        (Generous, "score shop", "wrong passed: ['shop-gift-0'"),
        (Stingy, "score shop", "reference failed: ['shop-gift-0'"),
        (Forgetful, "tasks shop", "described 36 tasks, listed 35"),
    ],
)
async def test_a_benchmark_that_judges_wrongly_is_found(environment: type[Toy], name: str, said: str) -> None:
    """Rewards that do not follow the solutions, and tasks that do not add up, are bad rows."""
    found = await rows(lambda limits: InProcessEnvironment(environment, limits=limits), sample=2)
    assert not found[name].ok
    assert said in found[name].detail


async def test_known_misses_are_told_with_their_reason() -> None:
    """A reference solution that is known to fail is counted and explained, not hidden."""
    excused = {"shop-gift-0": "a flaw of the key", "shop-gift-1": "never played"}
    found = await rows(
        lambda limits: InProcessEnvironment(Stingy, limits=limits), sample=1, domains=["shop"], known_misses=excused
    )
    assert found["score shop"].ok
    assert found["score shop"].detail == ("reference 0/1 scored 1, wrong 1/1 scored 0; shop-gift-0: a flaw of the key")


async def test_a_program_that_dies_of_garbage_is_found(tmp_path: Path) -> None:
    """A program that speaks the protocol but cannot take a bad line, or prints noise, has bad rows."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    op, result = request["op"], {}
    if op == "describe":
        result = {"protocol": 1, "env": "own", "version": "1", "domains": {"all": 1}}
    elif op == "tasks":
        result = [{"task_id": "one", "domain": "all"}]
    elif op == "reset":
        result = {"system": "", "messages": [], "tools": []}
    elif op == "step":
        result = {"messages": []}
    elif op == "evaluate":
        result = {"reward": 0, "success": False}
    if op in ("oracle", "fault"):
        answer = {"id": request["id"], "ok": False, "error": {"kind": "refused", "message": "no"}}
    else:
        answer = {"id": request["id"], "ok": True, "result": result}
    print(json.dumps(answer), flush=True)
"""
    )
    argv = [sys.executable, str(program)]
    found = await rows(lambda limits: ChildEnvironment(argv, environ={}, limits=limits))
    assert not found["garbage line"].ok
    assert [name for name, row in found.items() if not row.ok] == ["garbage line"]
