"""A model in a process of its own: one for all who ask, started when needed, replaced when it dies, gone when idle."""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from hosted_model import row_of

from events.errors import BadInput
from events.vectors import Vector, fixed_point
from infra import embedding_link, private_sockets
from infra.embedding_link import Hosted
from infra.private_sockets import private_folder
from infra.server_locks import ServerLocks
from runtime.errors import EmbedderUnavailable, EmbeddingFailed

#: a process that is not there, or not gone, by then hangs, seconds
_LONG_S = 120
_PLAIN = Path(__file__).parent / "plain"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home's folder for one model; its processes end with the test."""
    monkeypatch.setenv("PYTHONPATH", str(_PLAIN))
    yield tmp_path
    for pid in loads(tmp_path):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    if socket := read(tmp_path / "socket"):
        shutil.rmtree(Path(socket).parent, ignore_errors=True)


@pytest.fixture
def hosted(folder: Path) -> Callable[..., Hosted]:
    """Makes a worker's way to the model."""

    def make(idle_s: float = _LONG_S) -> Hosted:
        return Hosted(folder, "hosted_model", {"folder": str(folder), "batch_size": 4}, idle_s)

    return make


def loads(folder: Path) -> list[int]:
    """The processes that have loaded the model, in order."""
    return [int(pid) for pid in read(folder / "loads").split()]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def alive(pid: int) -> bool:
    """Whether the process lives and is the model's."""
    try:
        return b"embedding_host" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def until(fits: Callable[[], bool]) -> None:
    """What another process does is waited for by looking."""
    with anyio.fail_after(_LONG_S):
        while not fits():  # noqa: ASYNC110 - it is in another process
            await anyio.sleep(0.01)


def expected(text: str) -> Vector:
    return fixed_point(row_of(text))


async def test_texts_come_back_as_vectors(hosted: Callable[..., Hosted]) -> None:
    """In order, of both sides, many at once and none."""
    one = hosted()
    assert await one.start() == 3
    assert await one.embed(["a", "bb", "a"], "document") == [expected("a"), expected("bb"), expected("a")]
    assert await one.embed([], "query") == []
    found: dict[str, list[Vector]] = {}

    async def ask(text: str) -> None:
        found[text] = await one.embed([text], "query")

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(ask, f"text {number}")
    assert found == {text: [expected(text)] for text in found}
    assert len(found) == 40
    one.close()


async def test_the_model_is_loaded_once_for_all(hosted: Callable[..., Hosted], folder: Path) -> None:
    """Eight workers that begin at the same time share one process."""
    workers = [hosted() for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        for one in workers:
            tasks.start_soon(one.start)
    for one in workers:
        assert await one.embed(["a"], "query") == [expected("a")]
        one.close()
    assert len(loads(folder)) == 1


async def test_a_process_that_was_killed_is_replaced(hosted: Callable[..., Hosted], folder: Path) -> None:
    """Between two requests, and inside one: the caller has its vectors from the next process."""
    one = hosted()
    await one.embed(["a"], "query")
    before = Path(read(folder / "socket")).parent
    os.kill(loads(folder)[0], signal.SIGKILL)
    assert await one.embed(["bb"], "query") == [expected("bb")]
    assert await one.embed(["die once"], "query") == [expected("die once")]
    assert len(loads(folder)) == 3
    # What the dead one could not tidy away, its successor did.
    assert not before.exists()
    one.close()


async def test_one_death_is_not_taken_for_two(hosted: Callable[..., Hosted], folder: Path) -> None:
    """A process that dies hangs up before it stops listening: nobody comes back to it, its end is waited for."""
    locks, socket, one = ServerLocks(folder), private_folder("s") / "s", hosted()
    hung_up: list[asyncio.StreamWriter] = []

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hung_up.append(writer)
        writer.close()

    locks.prepare()
    async with anyio.create_task_group() as tasks:
        with locks.given():
            dying = await asyncio.start_unix_server(hang_up, socket)
            (folder / "socket").write_text(str(socket))
            tasks.start_soon(one.start)
            await until(lambda: bool(hung_up))
            await anyio.sleep(0.1)  # whoever comes back at once is here by now
            dying.close()
    assert len(hung_up) == 1
    assert await one.embed(["a"], "query") == [expected("a")]
    assert len(loads(folder)) == 1
    one.close()


async def test_whoever_has_left_may_come_back(
    hosted: Callable[..., Hosted], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that it has left serves it again at once: there is no end to wait for."""
    monkeypatch.setattr(embedding_link, "_ENDING_S", math.inf)
    one = hosted()
    await one.embed(["a"], "query")
    one.close()
    with anyio.fail_after(120):
        assert await one.embed(["bb"], "query") == [expected("bb")]
    assert len(loads(folder)) == 1
    one.close()


async def test_a_process_that_is_stopped(
    hosted: Callable[..., Hosted], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it without end: who is there and who comes is told what to do; it serves once it wakes."""
    one, another = hosted(), hosted()
    await one.embed(["a"], "query")
    (pid,) = loads(folder)
    os.kill(pid, signal.SIGSTOP)
    with monkeypatch.context() as hurried:
        hurried.setattr(embedding_link, "_SILENT_S", 0.2)
        hurried.setattr(embedding_link, "_READ_S", 0.05)
        for worker in (one, another):
            with pytest.raises(EmbedderUnavailable, match=r"said nothing .*fuser .*server\.lock"):
                await worker.embed(["bb"], "query")
    os.kill(pid, signal.SIGCONT)
    for worker in (one, another):
        assert await worker.embed(["bb"], "query") == [expected("bb")]
        worker.close()
    assert loads(folder) == [pid]


async def test_a_model_that_takes_long_is_waited_for(hosted: Callable[..., Hosted], folder: Path) -> None:
    """While it computes its process says that it lives."""
    one = hosted()
    await one.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.embed, ["wait"], "query")
        await until(lambda: "wait" in read(folder / "embedded"))
        line = one._line
        assert line is not None
        before = line._heard_s
        with anyio.fail_after(_LONG_S):
            while line._heard_s == before:  # noqa: ASYNC110 - what another process says
                await anyio.sleep(0.05)
        (folder / "go").touch()
    one.close()


async def test_a_text_that_kills_every_process(hosted: Callable[..., Hosted], folder: Path) -> None:
    """Not for ever: three processes, then an error; other texts are embedded after it."""
    one = hosted()
    with pytest.raises(EmbedderUnavailable, match="died 3 times") as caught:
        await one.embed(["die"], "query")
    assert caught.value.kind == "died"
    assert len(loads(folder)) == 3
    assert await one.embed(["a"], "query") == [expected("a")]
    one.close()


async def test_a_process_that_dies_as_it_loads(hosted: Callable[..., Hosted], folder: Path) -> None:
    """Out of memory, say: tried three times, then unavailable."""
    (folder / "dying").touch()
    with pytest.raises(EmbedderUnavailable, match="died 3 times"):
        await hosted().start()
    assert len(loads(folder)) == 3


async def test_a_model_that_does_not_load(hosted: Callable[..., Hosted], folder: Path) -> None:
    """Its own words, once; when it is mended, the next who asks has it from a new process."""
    (folder / "broken").touch()
    one = hosted()
    with pytest.raises(BadInput, match="these weights are torn"):
        await one.start()
    one.close()
    await until(lambda: not alive(loads(folder)[0]))
    (folder / "broken").unlink()
    other = hosted()
    assert await other.embed(["a"], "query") == [expected("a")]
    other.close()


async def test_a_texts_fault_is_its_callers_alone(hosted: Callable[..., Hosted]) -> None:
    """One caller is told why, another in the same batch has its vector, and the process lives on."""
    one = hosted()
    told: list[str] = []

    async def faulty() -> None:
        try:
            await one.embed(["fault"], "query")
        except EmbeddingFailed as error:
            told.append(str(error))

    await one.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(faulty)
        assert await one.embed(["fauna"], "query") == [expected("fauna")]
    assert told == ["the text 'fault': ValueError: no such word"]
    one.close()


async def test_a_caller_that_leaves_is_not_worked_for(hosted: Callable[..., Hosted], folder: Path) -> None:
    """While a batch runs, one of two that wait is cancelled: its text is never embedded, the other's is."""
    one = hosted()
    await one.start()
    found: list[Vector] = []

    async def stay() -> None:
        found.extend(await one.embed(["stay"], "query"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.embed, ["wait"], "query")
        await until(lambda: "wait" in read(folder / "embedded"))
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as others:
                others.start_soon(one.embed, ["gone"], "query")
                await anyio.wait_all_tasks_blocked()
                leaving.cancel()
        tasks.start_soon(stay)
        await anyio.wait_all_tasks_blocked()
        # The other end reads in order: what it was told of the one who left came before a question of its own.
        await one.embed([], "query")
        (folder / "go").touch()
    assert found == [expected("stay")]
    assert read(folder / "embedded").split() == ["wait", "stay"]
    one.close()


async def test_it_ends_when_nobody_needs_it(hosted: Callable[..., Hosted], folder: Path) -> None:
    """A while after the last has left; it takes its socket with it, and the next who asks starts another."""
    one, other = hosted(0.5), hosted(0.5)
    await one.embed(["a"], "query")
    await other.embed(["a"], "query")
    # Where we were slow, an earlier one has ended before anybody came to it.
    before, socket = loads(folder), Path(read(folder / "socket"))
    pid = before[-1]
    one.close()
    assert await other.embed(["bb"], "query") == [expected("bb")]
    assert alive(pid)
    assert loads(folder) == before
    other.close()
    await until(lambda: not alive(pid))
    assert not socket.parent.exists()
    last = hosted()
    assert await last.embed(["a"], "query") == [expected("a")]
    assert len(loads(folder)) == len(before) + 1
    last.close()


async def test_a_stale_socket_is_no_process(hosted: Callable[..., Hosted], folder: Path) -> None:
    """A file that names a socket nobody listens on, or nonsense, does not stop a start."""
    (folder / "socket").write_text("/nowhere/s")
    one = hosted()
    assert await one.embed(["a"], "query") == [expected("a")]
    one.close()


async def test_no_folder_for_a_socket(hosted: Callable[..., Hosted], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every folder's path is too long, the embedder is not to be had, and one line says what to set."""
    monkeypatch.setattr(private_sockets, "_LONGEST", 10)
    with pytest.raises(EmbedderUnavailable, match="TMPDIR"):
        await hosted().start()
