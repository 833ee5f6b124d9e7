"""Exports in and out of a server in any order, good and spoiled: the same bytes, and no refusal leaves a trace."""

import json
import shutil
import tracemalloc
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

import pytest
import zstandard
from anyio.from_thread import BlockingPortal, start_blocking_portal
from chaos_budget import limit_s, rounds, searching, told
from hostile import TOKENS, golden_logs, hostile_log, with_field
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from plain_fold import plain_json
from redis.asyncio import Redis

from events.errors import ChimeError, Mismatch
from events.ids import RunId
from infra.clock import SystemClock
from infra.export import export_log
from infra.list_log import ListLogStore
from infra.log_import import ImportReport, import_log
from infra.redis_client import client
from infra.redis_log import RedisLogStore

LOGS = dict(enumerate(golden_logs()))
RUNS = ("a", "b")
FORMS = ("log.jsonl", "log.jsonl.zst", "folder")
#: what the search may take of the minutes of `make chaos`
SHARE = 0.2

seeds = st.integers(0, 2**32)
forms = st.sampled_from(FORMS)
runs = st.sampled_from(RUNS)
logs = st.sampled_from(sorted(LOGS))


def renamed(line: bytes, run: str) -> bytes:
    """The line as one of `run`."""
    event = json.loads(line)
    old, event["run"] = event["run"], run
    event["id"] = f"{run}/{event['stream']}/{event['version']}"
    if event["cause"] and event["cause"].startswith(f"{old}/"):
        event["cause"] = run + event["cause"].removeprefix(old)
    return plain_json(event) + b"\n"


class Imports(RuleBasedStateMachine):
    """A server and what it should hold: run -> the lines of its export."""

    url: str
    portal: BlockingPortal

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, list[bytes]] = {}
        self.folder = Path(mkdtemp(prefix="hostile-"))
        self.prefix = f"i{uuid4().hex}"
        self.redis: Redis = self.portal.call(client, self.url)
        self.store = RedisLogStore(self.redis, self.prefix, SystemClock(), "here", home=self.folder)

    def written(self, lines: list[bytes], form: str) -> Path:
        """An export of `lines`, made by way of memory."""
        place = self.folder / uuid4().hex
        place.mkdir()
        (place / "in.jsonl").write_bytes(b"".join(lines))

        async def write() -> None:
            store = ListLogStore(SystemClock())
            run = (await import_log(place / "in.jsonl", store)).run
            await export_log(store.open(run), place / form)

        self.portal.call(write)
        return place / form

    def taken_in(self, path: Path, run: str) -> ImportReport:
        return self.portal.call(lambda: import_log(path, self.store, run=RunId(run)))

    @rule(run=runs, log=logs, share=st.integers(1, 4), form=forms)
    def import_some(self, run: str, log: int, share: int, form: str) -> None:
        """The beginning of a log: taken in once, known again, refused where another or a shorter one is there."""
        lines = LOGS[log][: len(LOGS[log]) * share // 4]
        path = self.written(lines, form)
        wanted = [renamed(line, run) for line in lines]
        there = self.model.get(run)
        if there is None:
            assert self.taken_in(path, run).written
            self.model[run] = wanted
        elif there[: len(wanted)] == wanted:
            assert not self.taken_in(path, run).written
        else:
            with pytest.raises(Mismatch):
                self.taken_in(path, run)

    @rule(run=runs, log=logs, chance=seeds, packed=st.booleans())
    def import_hostile_lines(self, run: str, log: int, chance: int, packed: bool) -> None:
        """Spoiled lines: refused, or a log like any other."""
        text = hostile_log(LOGS[log], Random(chance))  # noqa: S311 - chance, no secret
        path = self.folder / f"{uuid4().hex}.jsonl"
        path.write_bytes(zstandard.compress(text) if packed else text)
        self.refused_or_kept(path, run)

    @rule(run=runs, log=logs, form=forms, chance=seeds)
    def import_damaged_files(self, run: str, log: int, form: str, chance: int) -> None:
        """A byte of any file of an export changed, cut or doubled: a folder is as it was or refused."""
        path, dice = self.written(LOGS[log], form), Random(chance)  # noqa: S311 - chance, no secret
        file = dice.choice([path] if path.is_file() else sorted(path.iterdir()))
        data, at = file.read_bytes(), dice.randrange(file.stat().st_size)
        file.write_bytes(
            dice.choice((data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :], data[:at], data * 2))
        )
        kept = self.refused_or_kept(path, run)
        if form == "folder" and kept is not None:
            assert kept == [renamed(line, run) for line in LOGS[log]]

    def refused_or_kept(self, path: Path, run: str) -> list[bytes] | None:
        """The lines that were taken in, which come out as they went in; None where they were refused."""
        try:
            report = self.taken_in(path, run)
        except ChimeError as error:
            str(error).encode("utf-8", "surrogatepass")
            return None
        lines = self.lines(run)
        if report.written:
            assert run not in self.model
            self.model[run] = lines
        assert self.model[run] == lines
        again = ListLogStore(SystemClock())
        out = self.folder / uuid4().hex
        out.mkdir()

        async def round_trip() -> None:
            await export_log(self.store.open(RunId(run)), out / "log.jsonl.zst")
            await import_log(out / "log.jsonl.zst", again)
            await export_log(again.open(RunId(run)), out / "log.jsonl")

        self.portal.call(round_trip)
        assert (out / "log.jsonl").read_bytes() == b"".join(lines)
        return lines

    def lines(self, run: str) -> list[bytes]:
        path = self.folder / f"{uuid4().hex}.jsonl"
        self.portal.call(lambda: export_log(self.store.open(RunId(run)), path))
        return path.read_bytes().splitlines(keepends=True)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        """What is there comes out as it went in."""
        run = data.draw(st.sampled_from(sorted(self.model)))
        assert self.lines(run) == self.model[run]

    @rule(run=runs)
    def delete(self, run: str) -> None:
        """And makes room for another."""
        self.portal.call(self.store.delete, RunId(run))
        self.model.pop(run, None)

    @invariant()
    def nothing_else_is_there(self) -> None:
        """The runs of the model under their names, without an end; and the list of them."""

        async def seen() -> tuple[set[str], set[int], list[str]]:
            every = {key.decode() async for key in self.redis.scan_iter(match=f"{self.prefix}:*", count=1000)}
            keys = {key for key in every if "{" in key}
            return keys, {await self.redis.ttl(key) for key in keys}, await self.store.runs()

        keys, ends, listed = self.portal.call(seen)
        assert {key.rpartition(":")[0] for key in keys} == {f"{self.prefix}:{{{run}}}" for run in self.model}
        assert ends <= {-1}
        assert listed == sorted(self.model)

    def teardown(self) -> None:
        """Nothing stays on the server or the disk."""

        async def end() -> None:
            for run in RUNS:
                await self.store.delete(RunId(run))
            await self.redis.aclose()

        self.portal.call(end)
        shutil.rmtree(self.folder)


@pytest.mark.chaos
@pytest.mark.timeout(limit_s(300, SHARE))
def test_imports_are_whole_or_leave_nothing(redis_server: Any) -> None:
    """Whatever is imported, exported and deleted in whatever order: the server holds what the model says."""
    with start_blocking_portal("asyncio") as portal:
        machine = type("Bound", (Imports,), {"url": redis_server.url, "portal": portal})
        for one in rounds(SHARE):
            with told(one):
                run_state_machine_as_test(seed(one)(machine), settings=searching(15, 12))


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: f"{token[:24]!r}-{len(token)}")
async def test_a_field_that_nobody_knows_is_checked_too(token: bytes, tmp_path: Path) -> None:
    """Whatever stands in it, the file is refused with an error of ours, or taken in and written again unchanged."""
    lines = list(LOGS[0])
    lines[2] = with_field(lines[2], token)
    (tmp_path / "in.jsonl").write_bytes(b"".join(lines))
    store = ListLogStore(SystemClock())
    try:
        report = await import_log(tmp_path / "in.jsonl", store)
    except ChimeError as error:
        str(error).encode("utf-8", "surrogatepass")
        assert await store.runs() == []
        return
    await export_log(store.open(report.run), tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(lines)


@pytest.mark.parametrize("filling", [b"\0", b"\n", b"[", b'{"id":"'], ids=["nul", "newline", "nested", "text"])
async def test_a_small_file_that_unpacks_to_much_is_refused_early(filling: bytes, tmp_path: Path) -> None:
    """A quarter of a gigabyte in a few kilobytes: refused with a fraction of that memory."""
    path = tmp_path / "log.jsonl.zst"
    with zstandard.open(path, "wb") as file:
        for _ in range(256):
            file.write(filling * ((1 << 20) // len(filling)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ChimeError):
            await import_log(path, ListLogStore(SystemClock()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
