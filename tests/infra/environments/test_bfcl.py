"""BFCL in its own environment: official scores on a sample, and the fidelity of dialogs, memory and search."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.environments import ChildEnvironment, Limits, load
from infra.environments.child import ChildSession
from infra.environments.conformance import KNOWN_MISSES, check
from runtime.errors import EnvironmentFailed
from runtime.task import Evaluation, StepResult, Task

pytestmark = pytest.mark.bfcl


@pytest.fixture
def bfcl(bfcl_home: Path, monkeypatch: pytest.MonkeyPatch) -> ChildEnvironment:
    """BFCL with reference solutions and without a key for searching; the test closes it."""
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    environment = load("bfcl", bfcl_home, oracle=True)
    assert isinstance(environment, ChildEnvironment)
    return environment


def says(text: str) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": text}


def calls(*wanted: tuple[str, str]) -> dict[str, Any]:
    """An assistant message that calls tools by (name, arguments as text)."""
    tool_calls = [
        {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(wanted)
    ]
    return {"role": "assistant", "content": None, "tool_calls": tool_calls}


async def played(session: ChildSession, turns: Sequence[Sequence[dict[str, Any]]]) -> StepResult:
    """The last step's result."""
    result = StepResult(messages=[])
    for message in (message for turn in turns for message in turn):
        result = await session.step(message)
    return result


async def task_named(environment: ChildEnvironment, task_id: str) -> Task:
    """A task by its id."""
    for domain in (await environment.describe()).domains:
        if task_id.startswith(domain):
            for task in await environment.tasks(domain):
                if task.task_id == task_id:
                    return task
    raise LookupError(task_id)


async def test_the_suite_passes(bfcl_home: Path) -> None:
    """Conformance: oracle 1 and saboteur 0 on 30 tasks a category, and hosts that end when they must."""
    rows = {
        row.name: row
        async for row in check(lambda limits: load("bfcl", bfcl_home, limits=limits, oracle=True), sample=30)
    }
    assert [row for row in rows.values() if not row.ok] == []
    assert len([name for name in rows if name.startswith("score ")]) >= 13
    assert rows["score memory_kv"].detail == "reference 30/30 scored 1, wrong 30/30 scored 0"


async def test_known_misses_are_still_misses(bfcl: ChildEnvironment) -> None:
    """The list of tasks whose ground truth and schema disagree holds no task that could be scored."""
    async with bfcl.session() as session:
        for task_id in KNOWN_MISSES["bfcl"]:
            task = await task_named(bfcl, task_id)
            await session.reset(task, "e", 42, {})
            await played(session, (await session.oracle(task))["turns"])
            assert not (await session.evaluate()).success
    await bfcl.aclose()


async def test_counts_are_those_of_the_wheel(bfcl: ChildEnvironment) -> None:
    """Every category is there with the published number of tasks, memory with its prerequisites."""
    description = await bfcl.describe()
    assert description.version == "2026.3.23"
    assert {k: v for k, v in description.domains.items() if k != "memory_vector"} == {
        "live_simple": 258, "live_multiple": 1053, "live_parallel": 16, "live_parallel_multiple": 24,
        "live_irrelevance": 884, "live_relevance": 16, "multi_turn_base": 200, "multi_turn_miss_func": 200,
        "multi_turn_miss_param": 200, "multi_turn_long_context": 200, "web_search_base": 100,
        "memory_kv": 155 + 37, "memory_rec_sum": 155 + 37,
    }  # fmt: skip
    await bfcl.aclose()


async def test_a_held_out_function_arrives_in_the_middle(bfcl: ChildEnvironment) -> None:
    """A miss_func task hands out the missing tool in its later turn, with the official words."""
    task = await task_named(bfcl, "multi_turn_miss_func_0")
    async with bfcl.session() as session:
        opening = await session.reset(task, "e", 42, {})
        answers = await session.oracle(task)
        grown = []
        for turn in answers["turns"]:
            result = await played(session, [turn])
            if result.tools is not None:
                grown.append({tool["function"]["name"] for tool in result.tools})
                assert result.messages[-1]["content"].startswith("I have updated some more functions")
        (names,) = grown
        assert names - {tool["function"]["name"] for tool in opening.tools} == {"sort"}
        assert result.terminated_by == "agent_stop"
        assert (await session.evaluate()).success
    await bfcl.aclose()


async def test_the_twenty_first_step_of_a_turn_is_the_last(bfcl: ChildEnvironment) -> None:
    """A model that calls on and on is force-terminated after more than 20 steps in one turn, and scores 0."""
    task = await task_named(bfcl, "multi_turn_base_0")
    async with bfcl.session() as session:
        await session.reset(task, "e", 42, {})
        for step in range(1, 22):
            result = await session.step(calls(("pwd", "{}")))
            assert result.done == (step == 21)
        assert result.terminated_by == "force_terminated"
        evaluation = await session.evaluate()
        assert evaluation == Evaluation(
            reward=0.0, success=False, breakdown={"error_type": "multi_turn:force_terminated"}
        )
    await bfcl.aclose()


async def test_episodes_start_afresh(bfcl: ChildEnvironment) -> None:
    """Nothing of one episode's simulated world is left in the next one on the same host."""
    task = await task_named(bfcl, "multi_turn_base_0")
    async with bfcl.session() as session:
        seen = []
        for _ in range(2):
            await session.reset(task, "e", 42, {})
            result = await session.step(calls(("ls", "{}"), ("mkdir", '{"dir_name": "new"}'), ("ls", "{}")))
            seen.append([message["content"] for message in result.messages])
            assert [message["tool_call_id"] for message in result.messages] == ["c0", "c1", "c2"]
            await session.evaluate()
        assert seen[0] == seen[1]
        assert seen[0][0] != seen[0][2]
    await bfcl.aclose()


@pytest.mark.parametrize("arguments", ["{", "[]", "7", '"text"'])
async def test_calls_that_cannot_be_read_end_the_turn(bfcl: ChildEnvironment, arguments: str) -> None:
    """As in the official loop, the next turn begins; every call is answered, so that the history stays valid."""
    task = await task_named(bfcl, "multi_turn_base_0")
    async with bfcl.session() as session:
        await session.reset(task, "e", 42, {})
        result = await session.step(calls(("ls", arguments)))
        assert [message["role"] for message in result.messages] == ["tool", "user"]
        assert result.errors == 1
        assert (await session.evaluate()).breakdown == {"ended_early": True}
    await bfcl.aclose()


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, says(""), calls(("nothing", "}{"))])
async def test_an_empty_answer_scores_zero(bfcl: ChildEnvironment, message: dict[str, Any]) -> None:
    """A live task is over after one message, whatever it is."""
    task = await task_named(bfcl, "live_simple_0-0-0")
    async with bfcl.session() as session:
        opening = await session.reset(task, "e", 42, {})
        assert opening.mode == "single_shot"
        assert (await session.step(message)).terminated_by == "single_shot"
        assert not (await session.evaluate()).success
    await bfcl.aclose()


async def test_memory_travels_between_hosts(bfcl_home: Path) -> None:
    """What a prerequisite conversation leaves comes as an artifact, and another host starts from it."""
    artifacts: dict[str, Any] = {}
    for task_id in ("memory_rec_sum_prereq_0-customer-0", "memory_rec_sum_prereq_1-customer-1"):
        environment = load("bfcl", bfcl_home, oracle=True, limits=Limits(max_hosts=1))
        assert isinstance(environment, ChildEnvironment)
        task = await task_named(environment, task_id)
        assert task.preparatory
        assert list(artifacts) == task.depends_on
        async with environment.session() as session:
            opening = await session.reset(task, "e", 42, {"artifacts": artifacts})
            assert ("There is no content in the memory" in opening.system) == (not artifacts)
            assert ("My name is Michael" in opening.system) == bool(artifacts)
            await session.step(calls(("memory_append", '{"text": "My name is Michael."}')))
            evaluation = await session.evaluate()
        await environment.aclose()
        assert (evaluation.reward, evaluation.success, evaluation.breakdown) == (1.0, True, {"unscored": True})
        artifacts = {task_id: json.loads(json.dumps(evaluation.artifact))}
    assert artifacts[task_id] == {"memory": {"memory": "My name is Michael.My name is Michael."}}


async def test_memory_that_was_lost_starts_empty(bfcl: ChildEnvironment) -> None:
    """A failed prerequisite is passed as null, and the memory starts empty; a forgotten one is an error."""
    task = await task_named(bfcl, "memory_kv_0-customer-0")
    assert len(task.depends_on) == 1
    async with bfcl.session() as session:
        with pytest.raises(EnvironmentFailed, match="needs the artifact"):
            await session.reset(task, "e", 42, {})
        opening = await session.reset(task, "e", 42, {"artifacts": {task.depends_on[0]: None}})
        assert "no content in the core memory" in opening.system
        await session.step(says("{'answer': 'Michael', 'context': 'guessed'}"))
        assert (await session.evaluate()).success
    await bfcl.aclose()


async def test_search_without_network_or_over_a_corpus(bfcl: ChildEnvironment, tmp_path: Path) -> None:
    """Search tools say that there is no network, or search a corpus of one's own."""
    task = (await bfcl.tasks("web_search_base"))[0]
    query = calls(("search_engine_query", '{"keywords": "oolong tea"}'))
    corpus = tmp_path / "corpus.jsonl"
    pages = [("http://a", "Tea", "oolong tea from China"), ("http://b", "Coffee", "beans from Brazil")]
    corpus.write_text("".join(json.dumps(dict(zip(("url", "title", "text"), p, strict=True))) + "\n" for p in pages))
    async with bfcl.session() as session:
        await session.reset(task, "e", 42, {})
        assert "no network" in (await session.step(query)).messages[0]["content"]
        await session.reset(task, "e", 42, {"retrieval": {"corpus": str(corpus)}})
        assert "http://a" in (await session.step(query)).messages[0]["content"]
        fetch = calls(("fetch_url_content", '{"url": "http://a", "mode": "truncate"}'))
        assert "oolong" in (await session.step(fetch)).messages[0]["content"]
        await session.evaluate()
    await bfcl.aclose()


async def test_evaluations_tell_no_answers(bfcl: ChildEnvironment) -> None:
    """A failed evaluation says what kind of error it was and nothing of the ground truth."""
    async with bfcl.session() as session:
        for domain in ("live_simple", "live_parallel", "multi_turn_base", "web_search_base"):
            task = (await bfcl.tasks(domain))[0]
            await session.reset(task, "e", 42, {})
            await played(session, (await session.oracle(task))["saboteur"])
            evaluation = await session.evaluate()
            assert set(evaluation.breakdown) == {"error_type"}
            assert (evaluation.info, evaluation.artifact) == ({}, None)
    await bfcl.aclose()
