"""Does an environment keep the protocol, score as it should, and end when it is told to?

`check` plays reference solutions and wrong ones on a sample of every domain, and treats hosts badly: kills and freezes
them, leaves in the middle of a step, sends garbage, plants noise and exceptions. Every row says what was done.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
from anyio.abc import Process
from msgspec import Struct

from infra.environments.answers import OracleEnvironment, OracleSession
from infra.environments.child import ChildEnvironment, ChildSession
from infra.environments.limits import Limits
from runtime.errors import EnvironmentCrashed, EnvironmentFailed, EnvironmentTimeout
from runtime.task import Evaluation, Task

#: benchmark -> task -> why its reference solution is known not to score 1
KNOWN_MISSES: dict[str, dict[str, str]] = {
    "bfcl": {
        "live_simple_106-63-0": "the ground truth accepts no value for a required parameter",
        "live_simple_112-68-0": "the ground truth accepts no value for a required parameter",
        "live_multiple_507-149-4": "the ground truth leaves a required parameter out",
        "live_multiple_862-181-3": "the ground truth names a parameter that the function does not have",
        "live_multiple_964-207-0": "the ground truth names a parameter that the function does not have",
    }
}

#: what a frozen host gets before it counts as silent, seconds
_SILENCE_S = 0.5
#: how long a process may take to be gone, seconds
_GONE_S = 30.0
#: size of the huge request, characters
_HUGE = 8 << 20


class Row(Struct, frozen=True, kw_only=True):
    """One thing that was checked."""

    name: str
    ok: bool
    detail: str


async def check(
    make: Callable[[Limits], OracleEnvironment],
    *,
    sample: int = 30,
    domains: Sequence[str] | None = None,
    known_misses: Mapping[str, str] | None = None,
) -> AsyncIterator[Row]:
    """Check the environment that `make` makes (with `oracle` allowed), row by row.

    Args:
        make: limits -> a new environment object; called several times.
        sample: tasks a domain that reference and wrong solutions are played on.
        domains: which; all of them where None.
        known_misses: task -> why its reference solution does not score 1; the table here where None.

    Raises:
        EnvironmentUnavailable: it does not start at all.
    """
    pids: set[int] = set()
    environment = make(Limits(max_hosts=1))
    try:
        description = await environment.describe()
        excused = KNOWN_MISSES.get(description.env, {}) if known_misses is None else known_misses
        judged = f", judged by {description.evaluator}" if description.evaluator else ""
        yield Row(name="describe", ok=True, detail=f"{description.env} {description.version}{judged}")
        for domain in description.domains if domains is None else domains:
            yield await _attempt(f"tasks {domain}", partial(_tasks, environment, domain, description.domains))
            yield await _attempt(f"score {domain}", partial(_scores, environment, domain, sample, excused))
        task = (await environment.tasks(next(iter(domains or description.domains))))[0]
    finally:
        await environment.aclose()
    if isinstance(environment, ChildEnvironment):
        for name, probe in PROBES.items():
            yield await _attempt(name, partial(probe, make, task, pids))
        for name, talk in TALKS.items():
            yield await _attempt(name, partial(_talk, environment, talk, pids))
        yield await _attempt("no process left behind", partial(_all_gone, pids))


class _Wrong(Exception):
    """A check that failed; the text says how."""


async def _attempt(name: str, run: Callable[[], Awaitable[str]]) -> Row:
    try:
        return Row(name=name, ok=True, detail=await run())
    except (_Wrong, EnvironmentCrashed, EnvironmentTimeout, EnvironmentFailed) as problem:
        return Row(name=name, ok=False, detail=str(problem))


# -- tasks and scores ------------------------------------------------------------------------------------------------


async def _tasks(environment: OracleEnvironment, domain: str, counts: Mapping[str, int]) -> str:
    tasks = await environment.tasks(domain)
    ids = {task.task_id for task in tasks}
    if len(tasks) != counts.get(domain) or len(ids) != len(tasks):
        raise _Wrong(f"described {counts.get(domain)} tasks, listed {len(tasks)}, {len(ids)} of them distinct")
    known = set[str]()
    for task in tasks:
        if task.domain != domain or not known.issuperset(task.depends_on):
            raise _Wrong(f"{task.task_id}: another domain, or it comes before a task it depends on")
        known.add(task.task_id)
    return f"{len(tasks)} tasks, {sum(task.preparatory for task in tasks)} of them preparatory"


async def _scores(environment: OracleEnvironment, domain: str, sample: int, excused: Mapping[str, str]) -> str:
    """Reference solutions score 1, wrong ones 0, on `sample` tasks spread evenly over the domain."""
    tasks = await environment.tasks(domain)
    by_id = {task.task_id: task for task in tasks}
    scored = [task for task in tasks if not task.preparatory]
    count = min(sample, len(scored))
    chosen = [scored[index * len(scored) // count] for index in range(count)]
    artifacts: dict[str, Any] = {}
    missed, leaked = [], []
    async with environment.session() as session:
        for task in chosen:
            await _prepare(session, task, by_id, artifacts)
            try:
                answers = await session.oracle(task)
            except EnvironmentFailed as problem:
                if problem.kind == "refused":
                    return f"not scored: {problem.message}"
                raise
            if not (await _play(session, task, answers["turns"], artifacts)).success:
                missed.append(task.task_id)
            if (await _play(session, task, answers["saboteur"], artifacts)).success:
                leaked.append(task.task_id)
    summary = f"reference {count - len(missed)}/{count} scored 1, wrong {count - len(leaked)}/{count} scored 0"
    unexplained = [task_id for task_id in missed if task_id not in excused]
    if leaked or unexplained:
        raise _Wrong(f"{summary}; reference failed: {unexplained}; wrong passed: {leaked}")
    known = "".join(f"; {task_id}: {excused[task_id]}" for task_id in missed)
    return summary + known


async def _prepare(session: OracleSession, task: Task, by_id: Mapping[str, Task], artifacts: dict[str, Any]) -> None:
    """Play what `task` depends on, first things first; what they leave goes into `artifacts`."""
    pending = [task_id for task_id in task.depends_on if task_id not in artifacts]
    while pending:
        before = by_id[pending[-1]]
        further = [task_id for task_id in before.depends_on if task_id not in artifacts]
        if further:
            pending += further
            continue
        answers = await session.oracle(before)
        artifacts[before.task_id] = (await _play(session, before, answers["turns"], artifacts)).artifact
        pending.pop()


async def _play(
    session: OracleSession, task: Task, turns: Sequence[Sequence[dict[str, Any]]], artifacts: Mapping[str, Any]
) -> Evaluation:
    options = {"artifacts": {task_id: artifacts[task_id] for task_id in task.depends_on}}
    opening = await session.reset(task, f"conformance-{task.task_id}", 42, options)
    done = opening.done
    for message in (message for turn in turns for message in turn):
        if done:
            raise _Wrong(f"{task.task_id} was over before its solution was")
        done = (await session.step(message)).done
    evaluation = await session.evaluate()
    if not 0.0 <= evaluation.reward <= 1.0:
        raise _Wrong(f"{task.task_id}: reward {evaluation.reward}")
    return evaluation


# -- hosts that are treated badly ------------------------------------------------------------------------------------

Probe = Callable[[Callable[[Limits], OracleEnvironment], Task, set[int]], Awaitable[str]]


async def _opened(session: OracleSession, task: Task, pids: set[int]) -> ChildSession:
    """The session of a host, in the middle of an episode."""
    if not isinstance(session, ChildSession):
        raise _Wrong("not a host's session")
    pids.add(session.pid)
    await session.reset(task, "conformance", 42, {})
    return session


_IDLE = {"role": "assistant", "content": "I do nothing."}


async def _crash(make: Callable[[Limits], OracleEnvironment], task: Task, pids: set[int]) -> str:
    """A host that is killed in an episode is a crash; the next session gets a new one."""
    environment = make(Limits(max_hosts=1))
    try:
        async with environment.session() as session:
            host = await _opened(session, task, pids)
            os.kill(host.pid, signal.SIGKILL)
            try:
                await host.step(_IDLE)
            except EnvironmentCrashed as crash:
                said = str(crash)
            else:
                raise _Wrong("a killed host answered")
        async with environment.session() as session:
            await _opened(session, task, pids)
    finally:
        await environment.aclose()
    return f"{said}; the next host works"


async def _timeout(make: Callable[[Limits], OracleEnvironment], task: Task, pids: set[int]) -> str:
    """A host that is silent for too long is ended with its process group."""
    environment = make(Limits(max_hosts=1, step_s=_SILENCE_S))
    try:
        async with environment.session() as session:
            host = await _opened(session, task, pids)
            os.kill(host.pid, signal.SIGSTOP)
            try:
                await host.step(_IDLE)
            except EnvironmentTimeout as timeout:
                said = str(timeout)
            else:
                raise _Wrong("a frozen host answered")
            await _gone({host.pid})
    finally:
        await environment.aclose()
    return said


async def _cancel(make: Callable[[Limits], OracleEnvironment], task: Task, pids: set[int]) -> str:
    """A caller that leaves in the middle of a step ends the host."""
    environment = make(Limits(max_hosts=1))
    try:
        async with environment.session() as session:
            host = await _opened(session, task, pids)
            os.kill(host.pid, signal.SIGSTOP)
            with anyio.move_on_after(_SILENCE_S):
                await host.step(_IDLE)
        await _gone({host.pid})
    finally:
        await environment.aclose()
    return "cancelled in a step, host ended"


async def _planted(make: Callable[[Limits], OracleEnvironment], task: Task, pids: set[int], op: str, kind: str) -> str:
    """An operation with a planted fault, in an otherwise ordinary episode."""
    environment = make(Limits(max_hosts=1))
    said = "nothing of it seen"
    try:
        async with environment.session() as session:
            host = await _opened(session, task, pids)
            try:
                await host.plant(op, kind)
            except EnvironmentFailed as problem:
                return f"not checked: the program plants no faults ({problem.message})"
            try:
                await host.step(_IDLE)
                await host.evaluate()
            except EnvironmentFailed as problem:
                said = f"an error answer ({problem.kind}: {problem.message})"
                if kind != "raise":
                    raise
            else:
                if kind == "raise":
                    raise _Wrong("an exception was not reported")
            pid = host.pid
            await _opened(session, task, pids)
        return f"{said}; host {pid} goes on"
    finally:
        await environment.aclose()


PROBES: dict[str, Probe] = {
    "crash": _crash,
    "timeout": _timeout,
    "cancel": _cancel,
    "evaluator exception": partial(_planted, op="evaluate", kind="raise"),
    "stdout noise": partial(_planted, op="step", kind="print"),
    "huge answer": partial(_planted, op="step", kind="huge"),
}

# -- raw conversations -----------------------------------------------------------------------------------------------

Talk = Callable[[Process], Awaitable[str]]


async def _talk(environment: ChildEnvironment, talk: Talk, pids: set[int]) -> str:
    """Start the environment's program by itself and speak to it line by line."""
    async with environment.process() as process:
        pids.add(process.pid)
        try:
            with anyio.move_on_after(_GONE_S + 180):
                return await talk(process)
            raise _Wrong("no answer")
        except anyio.EndOfStream:
            raise _Wrong("the program ended") from None


async def _say(process: Process, line: bytes) -> dict[str, Any]:
    """Send a line; the answer to it, which must be the very next line of its stdout."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    await process.stdin.send(line + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):
        answer += await process.stdout.receive()
    try:
        return dict(json.loads(answer))
    except (ValueError, TypeError):
        raise _Wrong(f"not one JSON object: {answer[:80]!r}") from None


async def _garbage(process: Process) -> str:
    for line in (b"garbage", b"[1, 2]", b'{"id": 1', b"\xff\xfe"):
        answer = await _say(process, line)
        if answer.get("id") is not None or answer.get("ok") is not False:
            raise _Wrong(f"{line!r} was answered with {answer}")
    if (await _say(process, b'{"id": 7, "op": "no such"}')).get("ok") is not False:
        raise _Wrong("an unknown operation was not refused")
    answer = await _say(process, b'{"id": 8, "op": "describe"}')
    if not answer.get("ok") or answer.get("id") != 8:
        raise _Wrong(f"after garbage, describe was answered with {answer}")
    return "4 garbage lines and an unknown operation answered with errors, describe after them"


async def _huge(process: Process) -> str:
    answer = await _say(process, json.dumps({"id": 1, "op": "describe", "padding": "x" * _HUGE}).encode())
    if not answer.get("ok"):
        raise _Wrong(f"a long request was answered with {answer}")
    return f"a request of {_HUGE >> 20} MiB answered"


async def _end_of_input(process: Process) -> str:
    await _say(process, b'{"id": 1, "op": "describe"}')
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    await process.stdin.aclose()
    with anyio.move_on_after(_GONE_S):
        await process.wait()
        return "ends when its stdin does"
    raise _Wrong(f"still there {_GONE_S:g} s after its stdin was closed")


TALKS: dict[str, Talk] = {"garbage line": _garbage, "huge line": _huge, "end of input": _end_of_input}


async def _gone(pids: set[int]) -> None:
    """Wait until none of the process groups is there any more."""
    alive = set(pids)
    with anyio.move_on_after(_GONE_S):
        while alive := {pid for pid in alive if _exists(pid)}:  # noqa: ASYNC110 - nobody tells us when a group is gone
            await anyio.sleep(0.02)
    if alive:
        raise _Wrong(f"still there: {sorted(alive)}")


def _exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def _all_gone(pids: set[int]) -> str:
    await _gone(pids)
    return f"{len(pids)} hosts started, all of them and their process groups gone"
