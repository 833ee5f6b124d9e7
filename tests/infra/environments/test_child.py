"""Child environments: answers, failures, deadlines, cancellation, the pool, and that nothing is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from infra.environments import ChildEnvironment, Limits
from infra.environments.child import ChildSession
from runtime.errors import EnvironmentCrashed, EnvironmentFailed, EnvironmentTimeout, EnvironmentUnavailable
from runtime.task import StepResult, Task

TASK = Task(task_id="one", domain="all")
Make = Callable[..., ChildEnvironment]
#: for who asks how a host ended: its exit code is waited for, however busy the machine
PATIENT = Limits(close_s=120)


def says(content: str) -> dict[str, Any]:
    """An assistant message."""
    return {"role": "assistant", "content": content}


async def opened(session: ChildSession) -> ChildSession:
    """A session in the middle of an episode."""
    await session.reset(TASK, "run/episode-0/1", 42, {})
    return session


def there(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


async def gone(pid: int) -> None:
    """Wait until a process is gone, or fail."""
    with anyio.fail_after(120):
        while there(pid):  # noqa: ASYNC110 - nobody tells us when a process of others is gone
            await anyio.sleep(0.01)


async def text_of(session: ChildSession, way: str) -> str:
    """What the tool said to a step."""
    result = await session.step(says(way))
    return str(result.messages[0]["content"])


def scratch_in(place: Path) -> set[Path]:
    """The hosts' folders for temporary files."""
    return set(place.glob("chime-host-*"))


async def test_crash_names_exit_code_and_last_words(misbehaving: Make) -> None:
    """A host that ends by itself is a crash with its exit code and the tail of its stderr."""
    environment = misbehaving(PATIENT)
    async with environment.session() as session:
        await opened(session)
        with pytest.raises(EnvironmentCrashed) as crash:
            await session.step(says("exit"))
        assert crash.value.exit_code == 7
        assert "last words" in crash.value.stderr_tail
        with pytest.raises(EnvironmentCrashed):
            await session.step(says("print"))
    async with environment.session() as session:
        await opened(session)
    await environment.aclose()


async def test_system_exit_is_a_crash(misbehaving: Make) -> None:
    """A benchmark that calls sys.exit ends its host."""
    environment = misbehaving(PATIENT)
    async with environment.session() as session:
        await opened(session)
        with pytest.raises(EnvironmentCrashed) as crash:
            await session.step(says("system exit"))
        assert crash.value.exit_code == 3
    await environment.aclose()


@pytest.mark.parametrize("way", ["hang", "busy"])
async def test_timeout_ends_the_process(misbehaving: Make, way: str) -> None:
    """A step over its limit ends the host, asleep or busy, and says which operation it was."""
    environment = misbehaving(Limits(step_s=0.2))
    async with environment.session() as session:
        await opened(session)
        with pytest.raises(EnvironmentTimeout) as timeout:
            await session.step(says(way))
        assert (timeout.value.op, timeout.value.limit_s) == ("step", 0.2)
        await gone(session.pid)
    await environment.aclose()


async def test_cancellation_ends_the_process(misbehaving: Make) -> None:
    """Leaving in the middle of a step ends the host and frees its place."""
    environment = misbehaving(Limits(max_hosts=1))
    pid = 0
    started = anyio.Event()

    async def episode() -> None:
        nonlocal pid
        async with environment.session() as session:
            pid = (await opened(session)).pid
            started.set()
            await session.step(says("hang"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(episode)
        await started.wait()
        tasks.cancel_scope.cancel()
    await gone(pid)
    async with environment.session() as session:
        await opened(session)
    await environment.aclose()


async def test_children_of_the_host_end_with_it(misbehaving: Make) -> None:
    """What a benchmark started ends on crash, when its caller leaves in a step and at the end."""
    environment = misbehaving()
    for way in ("exit", "hang", ""):
        async with environment.session() as session:
            await opened(session)
            grandchild = int(await text_of(session, "spawn"))
            assert there(grandchild)
            if way == "exit":
                with pytest.raises(EnvironmentCrashed):
                    await session.step(says(way))
            elif way:
                with anyio.move_on_after(0.2):
                    await session.step(says(way))
        await gone(grandchild)
    await environment.aclose()


async def test_noise_on_stdout_is_no_answer(misbehaving: Make) -> None:
    """Prints of the benchmark, of its C level and of its children never reach the protocol."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        assert await session.step(says("print")) == StepResult(messages=[])
        assert await text_of(session, "read") == ""
    await environment.aclose()


async def test_long_lines_pass_both_ways(misbehaving: Make) -> None:
    """Neither a request nor an answer has a length limit."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        await session.step(says("y" * 5_000_000))
        assert len(await text_of(session, "huge")) == 5_000_000
    await environment.aclose()


async def test_text_without_encoding_is_repaired(misbehaving: Make) -> None:
    """A lone surrogate arrives as U+FFFD."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        assert await text_of(session, "surrogate") == "a\ufffdb"
    await environment.aclose()


async def test_errors_of_a_benchmark_are_answers(misbehaving: Make) -> None:
    """An exception, also in the evaluator, is an error answer; the host lives on."""
    environment = misbehaving()
    async with environment.session() as session:
        pid = (await opened(session)).pid
        with pytest.raises(EnvironmentFailed) as failed:
            await session.step(says("raise"))
        assert (failed.value.op, failed.value.kind, failed.value.retryable) == ("step", "RuntimeError", True)
        for way, kind in (("nan", "ValueError"), ("object", "TypeError"), ("shapeless", "malformed_answer")):
            with pytest.raises(EnvironmentFailed) as failed:
                await session.step(says(way))
            assert failed.value.kind == kind
        with pytest.raises(EnvironmentFailed, match="divides by zero") as failed:
            await session.evaluate()
        assert not failed.value.retryable
        with pytest.raises(EnvironmentFailed, match="refused"):
            await session.oracle(TASK)
        with pytest.raises(EnvironmentFailed, match="no_episode"):
            await session.evaluate()
        with pytest.raises(EnvironmentFailed, match="no such task"):
            await session.reset(TASK, "e", 42, {"refuse": True})
    async with environment.session() as session:
        assert session.pid == pid
    await environment.aclose()


async def test_an_open_episode_ends_its_host(misbehaving: Make) -> None:
    """A session left before evaluate does not give its host to anybody else."""
    environment = misbehaving()
    async with environment.session() as session:
        first = (await opened(session)).pid
    await gone(first)
    async with environment.session() as session:
        assert session.pid != first
    await environment.aclose()


async def test_hosts_are_replaced_after_some_episodes(misbehaving: Make) -> None:
    """A host serves its number of episodes, then a new one takes over."""
    environment = misbehaving(Limits(max_hosts=1, episodes_per_host=2))
    pids = []
    for _ in range(4):
        async with environment.session() as session:
            pids.append((await opened(session)).pid)
            with pytest.raises(EnvironmentFailed):
                await session.evaluate()
    assert pids[0] == pids[1] != pids[2] == pids[3]
    await gone(pids[0])
    await environment.aclose()
    await gone(pids[2])


async def test_one_more_episode_waits_for_a_free_host(misbehaving: Make) -> None:
    """There are never more hosts than allowed; sessions beyond that wait their turn."""
    environment = misbehaving(Limits(max_hosts=2))
    entered = anyio.Event()

    async def third() -> None:
        async with environment.session():
            entered.set()

    async with anyio.create_task_group() as tasks:
        async with environment.session() as one, environment.session() as two:
            assert one.pid != two.pid
            tasks.start_soon(third)
            await anyio.wait_all_tasks_blocked()
            assert not entered.is_set()
        await entered.wait()
    await environment.aclose()
    await gone(one.pid)
    await gone(two.pid)


async def test_closing_ends_leased_hosts_too(misbehaving: Make) -> None:
    """`aclose` ends every host; a session that is still open sees a crash."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        await environment.aclose()
        await gone(session.pid)
        with pytest.raises(EnvironmentCrashed):
            await session.step(says("print"))


async def test_temporary_files_go_with_the_host(misbehaving: Make) -> None:
    """What a benchmark leaves in its temporary folder is removed, also when it is killed."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        place = anyio.Path(await text_of(session, "scratch"))
        assert await place.is_dir()
    assert not await place.exists()
    await environment.aclose()


async def test_a_talkative_host_fills_nothing(misbehaving: Make) -> None:
    """Megabytes on stderr neither block the host nor stay on disk; the tail is kept for a crash."""
    environment = misbehaving()
    async with environment.session() as session:
        await opened(session)
        for _ in range(3):
            await session.step(says("complain"))
        with pytest.raises(EnvironmentCrashed) as crash:
            await session.step(says("exit"))
        assert crash.value.stderr_tail.endswith("last words\n")
        assert "complaint" in crash.value.stderr_tail
    await environment.aclose()


@pytest.mark.parametrize(
    ("source", "said", "boot_s"),
    [
        ("raise SystemExit('no data here')", "no data here", 120),
        ("import time; time.sleep(600)", "did not answer describe", 0.2),
        # Once it is asked: one that ends before has crashed.
        ('input(); print(\'{"id": 1, "ok": true, "result": {}}\')', "not usable", 120),
        (
            "input(); print("
            '\'{"id": 1, "ok": true, "result": {"protocol": 9, "env": "x", "version": "1", "domains": {}}}\')',
            "protocol 9",
            120,
        ),
    ],
)
async def test_a_program_that_does_not_serve_is_unavailable(
    program: Callable[..., ChildEnvironment], source: str, said: str, boot_s: float
) -> None:
    """Ending, silence, nonsense or another protocol before the first answer is "unavailable", with the reason."""
    environment = program(source, Limits(boot_s=boot_s))
    with pytest.raises(EnvironmentUnavailable, match=said):
        await environment.describe()
    await environment.aclose()


async def test_a_missing_program_is_unavailable() -> None:
    """A command that does not exist is named."""
    environment = ChildEnvironment(["/nowhere/at-all"], environ={})
    with pytest.raises(EnvironmentUnavailable, match="/nowhere/at-all"):
        await environment.describe()


async def test_lines_that_answer_nothing_are_passed_over(program: Callable[..., ChildEnvironment]) -> None:
    """A program of the user's that prints between its answers is understood all the same."""
    environment = program(
        """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print("working on it")
    print(json.dumps({"id": request["id"] - 1, "ok": True, "result": "stale"}))
    print("[1, 2]")
    result = {"protocol": 1, "env": "chatty", "version": "1", "domains": {}}
    print(json.dumps({"id": request["id"], "ok": True, "result": result}), flush=True)
"""
    )
    assert (await environment.describe()).env == "chatty"
    await environment.aclose()


async def test_hosts_end_when_their_client_is_killed(
    misbehaving: Make, misbehaving_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gets SIGKILL leaves no host, not even a busy one, no child of a host, and files until a next start.

    The folder of a host that lives stays.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = f"""
import os, sys, anyio
from infra.environments import ChildEnvironment
from infra.environments.child import ChildSession
from infra.environments.install import __file__ as here
from pathlib import Path
from runtime.task import Task

async def main():
    argv = [sys.executable, str(Path(here).with_name("host.py")), {str(misbehaving_file)!r}]
    async with ChildEnvironment(argv, environ=dict(os.environ)).session() as session:
        await session.reset(Task(task_id="one", domain="all"), "e", 1, {{}})
        spawned = await session.step({{"role": "assistant", "content": "spawn"}})
        print(session.pid, spawned.messages[0]["content"], flush=True)
        await session.step({{"role": "assistant", "content": "busy"}})

anyio.run(main)
"""
    client = await anyio.open_process(
        [sys.executable, "-c", source], stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    async with client:
        assert client.stdout is not None
        said = b""
        while not said.endswith(b"\n") or len(said.split(b"\n")[-2].split()) != 2:
            said += await client.stdout.receive()
        pids = [int(word) for word in said.split(b"\n")[-2].split()]
        assert all(map(there, pids))
        (left,) = scratch_in(tmp_path)
        neighbour, later = misbehaving(), misbehaving()
        await neighbour.describe()
        (its,) = scratch_in(tmp_path) - {left}
        os.kill(client.pid, signal.SIGKILL)
        # Its pipes close before its locks: a host may be gone while it is still there.
        await client.wait()
        for pid in pids:
            await gone(pid)
        await later.describe()
        assert left not in scratch_in(tmp_path)
        assert its in scratch_in(tmp_path)
    await neighbour.aclose()
    await later.aclose()
    assert scratch_in(tmp_path) == set()


async def test_descriptions_and_tasks_are_typed(misbehaving: Make) -> None:
    """`describe` and `tasks` come as our types; a list of tasks is the caller's own copy."""
    environment = misbehaving()
    description = await environment.describe()
    assert (description.env, description.protocol, description.domains) == ("misbehaving", 1, {"all": 1})
    tasks = await environment.tasks("all")
    assert tasks == [TASK]
    tasks.clear()
    assert await environment.tasks("all") == [TASK]
    await environment.aclose()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "ended with 3 before it was ready; it said nothing on stderr$"),
        ("import nowhere_at_all", "its last words: .* / ModuleNotFoundError: No module named 'nowhere_at_all'$"),
    ],
)
async def test_a_host_that_does_not_start_is_told_on_one_line(code: str, said: str) -> None:
    """Its last lines, or that there are none."""
    environment = ChildEnvironment([sys.executable, "-c", code], environ={}, limits=PATIENT)
    with pytest.raises(EnvironmentUnavailable, match=said) as refused:
        await environment.describe()
    assert "\n" not in str(refused.value)
    await environment.aclose()
