"""Releases side by side in one run: the older one is replaced in its middle, or takes turns with a newer one."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import redis
from command_lines import ROOT, RUN, CommandLine, Endpoint, There, begin_run, until, verified

from workers.version import VERSION

NEWER = "9.9.0"
#: kinds that the newer release has more to say of
TOLD = ("planned", "scored", "diagnosed", "folded", "run_finished")

#: makes a PYTHONPATH of another release: what is told about it, in order: file, pattern, what stands there instead
Release = Callable[..., str]


@pytest.fixture
def release(tmp_path: Path, patient_children: Any) -> Release:
    """Makes a release with some changes, whose processes are patient about claims, as are those of this code."""
    patient = patient_children("claims").partition(os.pathsep)[0]

    def made(name: str = "", *changes: tuple[str, str, str]) -> str:
        if not name:
            return os.pathsep.join([patient, str(ROOT)])
        folder = tmp_path / name
        for package in ("events", "runtime", "infra", "workers"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file, pattern, instead in changes:
            text, count = re.subn(pattern, instead, (folder / file).read_text())
            assert count == 1, f"{file} has {count} times {pattern}"
            (folder / file).write_text(text)
        return os.pathsep.join([patient, str(folder)])

    return made


@pytest.fixture
def newer(release: Release) -> str:
    """The next release: another version, and a field more in most events; the fold is the same."""
    fields = [
        ("events/kinds.py", rf'( +)KIND: ClassVar\[str\] = "{kind}"\n', rf'\g<0>\1release: str = "{NEWER}"\n')
        for kind in TOLD
    ]
    return release("newer", ("workers/version.py", rf'"{re.escape(VERSION)}"', f'"{NEWER}"'), *fields)


class Cast:
    """Processes of several releases on one server."""

    def __init__(self, chime: CommandLine, there: There) -> None:
        self._chime, self._there = chime, there
        self.processes: list[Any] = []

    def start(self, path: str, *arguments: str) -> Any:
        """`chime` of the release at `path`."""
        self._chime.environment["PYTHONPATH"] = path
        self.processes.append(self._chime.begin(*arguments))
        return self.processes[-1]

    def serve(self, *processes: Any) -> None:
        """Wait until they are at work."""
        for one in processes:
            until(lambda one=one: re.search("worker started|serving the open runs", self._chime.said(one)))

    def end(self, *processes: Any) -> None:
        """Ask them to end: well, and without a traceback."""
        for one in processes:
            one.send_signal(signal.SIGTERM)
        for one in processes:
            _, err = self._chime.ended(one)
            assert "Traceback" not in err
            self.processes.remove(one)

    def trouble(self) -> list[dict[str, Any]]:
        """What anybody has said of jobs that failed, or were asked for again."""
        said = [self._chime.said(one) for one in self._chime.started]
        return [line for one in said for event in ("job failed", "job_reissued") for line in lines_of(one, event)]

    def holder(self) -> int:
        """The pid of the run's coordinator; 0 while there is none."""
        with redis.Redis.from_url(self._there.url, decode_responses=True) as client:
            name = client.hget(f"{self._there.prefix}:{{{RUN}}}:lease", "holder")
        return int(str(name).split("-")[-2]) if name else 0


def lines_of(said: str, event: str) -> list[dict[str, Any]]:
    """The facts logged of each `event`."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def releases(there: There, kind: str) -> list[str | None]:
    """Which release wrote each event of a kind, as far as it says so, in order."""
    with redis.Redis.from_url(there.url) as client:
        entries = [entry for _, entry in client.xrange(f"{there.prefix}:{{{RUN}}}:log")]
    return [json.loads(entry[b"data"]).get("release") for entry in entries if entry[b"kind"] == kind.encode()]


@pytest.fixture
def cast(chime: CommandLine, there: There) -> Cast:
    return Cast(chime, there)


def test_a_rolling_restart_to_a_newer_release_fails_no_episode(
    cast: Cast, chime: CommandLine, there: There, endpoint: Endpoint, digest: str, release: Release, newer: str
) -> None:
    """Everything is replaced in the middle of episodes: no attempt is lost, and both releases read what came out."""
    old = [cast.start(release(), *arguments) for arguments in (
        ("coordinator",), ("worker", "act", "--slots", "4", "--grace", "0.5"), ("worker", "diagnose", "--grace", "0.5"),
    )]  # fmt: skip
    cast.serve(*old)
    endpoint.hold_after(6)
    begin_run(chime, there, endpoint)
    until(lambda: endpoint.held and there.kinds().count("planned"))
    new = [cast.start(newer, *arguments) for arguments in (
        ("coordinator",), ("worker", "act", "--slots", "4"), ("worker", "diagnose"),
    )]  # fmt: skip
    cast.serve(*new)
    # Nobody answers meanwhile: what the old ones were at is handed back, and taken up where they left it.
    cast.end(*old)
    assert {line["version"] for line in lines_of(chime.said(old[1]), "planned")} == {VERSION}
    endpoint.release()
    until(lambda: there.kinds()[-1:] == ["run_finished"])
    cast.end(*new)
    for kind, process in (("executed", new[1]), ("diagnosed", new[2]), ("folded", new[0])):
        assert {line["version"] for line in lines_of(chime.said(process), kind)} == {NEWER}
    assert set(releases(there, "planned")) == {None, NEWER}
    assert cast.trouble() == []
    assert there.attempts() == {1}
    assert there.kinds().count("abandoned") == 0
    assert verified(there) == digest
    read_by_both(chime, release(), newer, digest)


def read_by_both(chime: CommandLine, older: str, newer: str, digest: str) -> None:
    """Either release verifies the log and writes the same bytes, also of what the older one has imported."""
    exports = []
    for path in (older, newer):
        chime.environment["PYTHONPATH"] = path
        assert chime.json("log", "verify", RUN)["data"]["digest"] == digest
        chime("log", "export", RUN, "-o", f"{len(exports)}.jsonl")
        exports.append((chime.folder / f"{len(exports)}.jsonl").read_bytes())
    assert f'"release":"{NEWER}"'.encode() in exports[0]
    chime.environment["PYTHONPATH"] = older
    chime("run", "delete", RUN, "--force")
    chime("log", "import", "0.jsonl")
    assert chime.json("log", "verify", RUN)["data"]["digest"] == digest
    chime("log", "export", RUN, "-o", "again.jsonl")
    assert exports == [(chime.folder / "again.jsonl").read_bytes()] * 2


def test_coordinators_of_two_releases_take_turns(
    cast: Cast, chime: CommandLine, there: There, endpoint: Endpoint, digest: str, release: Release, newer: str
) -> None:
    """One stands still, the other takes over, and back: each goes on behind the other's folds, and nobody gives up."""
    older = cast.start(release(), "coordinator")
    workers = cast.start(release(), "worker", "act", "--slots", "4"), cast.start(newer, "worker", "diagnose")
    cast.serve(older, *workers)
    endpoint.hold_after(0)
    begin_run(chime, there, endpoint)

    def folded(by: str | None) -> bool:
        """Whether that release has made the last fold; until then there is one answer more, and one more."""
        if (releases(there, "folded") or ["nobody"])[-1] == by:
            return True
        endpoint.step()
        return False

    until(lambda: folded(None))
    younger = cast.start(newer, "coordinator")
    cast.serve(younger)
    for stands, goes_on, by in ((older, younger, NEWER), (younger, older, None)):
        goes_on.send_signal(signal.SIGCONT)
        stands.send_signal(signal.SIGSTOP)
        until(lambda pid=goes_on.pid: cast.holder() == pid)
        until(lambda by=by: folded(by))
    younger.send_signal(signal.SIGCONT)
    endpoint.release()
    until(lambda: there.kinds()[-1:] == ["run_finished"])
    both = [chime.said(one) for one in (older, younger)]
    cast.end(older, younger, *workers)
    assert [lines_of(said, "run_left") for said in both] == [[], []]
    assert (set(releases(there, "planned")), set(releases(there, "diagnosed"))) == ({None}, {NEWER})
    assert [by for by, _ in groupby(releases(there, "folded"))][:3] == [None, NEWER, None]
    assert cast.trouble() == []
    assert there.attempts() == {1}
    assert verified(there) == digest


def test_a_release_that_folds_otherwise_leaves_a_run_alone(
    cast: Cast, chime: CommandLine, there: There, endpoint: Endpoint, digest: str, release: Release
) -> None:
    """Its coordinator and workers say so and take nothing: no attempt is lost, the run is as if they were not there."""
    other = release("other", ("events/policies/__init__.py", r"\nFOLD_VERSION = 1\n", "\nFOLD_VERSION = 2\n"))
    strangers = [cast.start(other, "coordinator"), *(cast.start(other, "worker", kind) for kind in ("act", "diagnose"))]
    own = [cast.start(release(), "coordinator"), cast.start(release(), "worker", "act", "--slots", "1")]
    cast.serve(*strangers, *own)
    endpoint.hold_after(0)
    begin_run(chime, there, endpoint)
    # Its one slot is taken, so that others see the next episode's job.
    until(lambda: endpoint.held)
    until(lambda: lines_of(chime.said(strangers[1]), "run left to other workers"))
    until(lambda: lines_of(chime.said(strangers[0]), "run_left"))
    own.append(cast.start(release(), "worker", "diagnose"))
    cast.serve(own[-1])
    endpoint.release()
    until(lambda: there.kinds()[-1:] == ["run_finished"])
    said = [chime.said(one) for one in strangers]
    cast.end(*strangers, *own)
    assert "folds by version 2, the run goes by 1" in said[0]
    assert not [line for one in said for kind in ("retrieved", "diagnosed", "folded") for line in lines_of(one, kind)]
    assert cast.trouble() == []
    assert there.attempts() == {1}
    assert there.kinds().count("abandoned") == 0
    assert verified(there) == digest
