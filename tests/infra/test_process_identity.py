"""A process is known by more than its pid."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra import process_identity
from infra.process_identity import ProcessIdentity, identity_of, pid_in, resident_bytes


def test_it_is_the_same_for_as_long_as_it_lives() -> None:
    """Also where its name holds parentheses and spaces; afterwards nobody is it."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        one = identity_of(process.pid)
        assert one is not None
        assert (one.pid, one.lives, identity_of(process.pid)) == (process.pid, True, one)
        assert (resident_bytes(one) or 0) > 0
        assert one.signal_group(signal.SIGKILL)
    assert (one.lives, identity_of(process.pid), resident_bytes(one)) == (False, None, None)
    assert not one.signal_group(signal.SIGKILL)


def test_its_memory_is_that_of_what_it_has_started_too() -> None:
    """A program around a server is small, and the server is not."""
    child = "held = bytearray(64 << 20); print(flush=True); input()"
    around = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", around, child]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        one = identity_of(process.pid)
        assert one is not None
        assert (resident_bytes(one) or 0) > 64 << 20
        process.communicate(b"\n")


@pytest.mark.parametrize(("rollup", "times"), [("smaps_rollup", 1), ("none", 2)])
def test_what_forks_share_is_there_once(monkeypatch: pytest.MonkeyPatch, rollup: str, times: int) -> None:
    """A server that forks to write its file holds no twice as much; where no share is told, it seems to."""
    monkeypatch.setattr(process_identity, "_ROLLUP", rollup)
    forking = "import os, sys; held = bytearray(64 << 20); os.fork(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", forking], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        one = identity_of(process.pid)
        assert one is not None
        assert (resident_bytes(one) or 0) // (64 << 20) == times
        process.communicate()


def test_a_name_may_be_anything(tmp_path: Path) -> None:
    """The kernel shows it in parentheses in the middle of the line."""
    odd = tmp_path / ") Z 1 ("
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE) as process:
        one = identity_of(process.pid)
        assert one is not None
        assert one.started.isdigit()
        process.communicate(b"\n")


def test_one_that_has_ended_and_was_not_waited_for_is_gone() -> None:
    """What is left of it runs nothing."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert identity_of(process.pid) is None
    process.wait()


def test_another_start_or_boot_is_another_process() -> None:
    """It is not sent what was meant for the one before it."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        one = identity_of(process.pid)
        assert one is not None
        for other in (replace(one, started="1"), replace(one, boot="another")):
            assert not other.lives
            assert not other.signal_group(signal.SIGKILL)
        assert one.lives
        process.kill()


def test_our_own_group_is_never_sent_anything() -> None:
    """A pid of ours in a file that somebody has written does not end us."""
    own = identity_of(os.getpid())
    assert own is not None
    assert not own.signal_group(signal.SIGTERM)
    for pid in (0, -1, 1 << 22):
        assert identity_of(pid) is None


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`ps` says the same: since when a pid runs."""
    monkeypatch.setattr(process_identity, "_BOOT", tmp_path / "none")
    with subprocess.Popen(["sleep", "1000"]) as process:
        one = process_identity._by_ps(process.pid)
        assert isinstance(one, ProcessIdentity)
        assert one.started
        assert one == process_identity._by_ps(process.pid)
        process.kill()
    assert process_identity._by_ps(process.pid) is None


def test_a_file_holds_a_pid_or_none(tmp_path: Path) -> None:
    """A file that is missing, empty or of somebody else names nobody."""
    file = tmp_path / "pid"
    assert pid_in(file) is None
    for text, pid in (("", None), ("no pid\n", None), ("4711\n", 4711)):
        file.write_text(text)
        assert pid_in(file) == pid
