"""Runs through real processes: command line, rq workers, server, model over HTTP; interrupted, killed, spread out."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from command_lines import ARGUMENTS, EPISODES, RUN, CommandLine, Endpoint, There, start, until, verified

from infra.weaviate_address import WeaviateAddress
from infra.weaviate_server import named


def test_a_run_through_rq_leaves_nothing_behind(chime: CommandLine, endpoint: Endpoint, digest: str, tmp_path: Path):
    """A run through workers and the home's server completes, verifies, and leaves log, bodies and empty lock files."""
    shown = chime.json(*start(endpoint))["data"]
    assert (shown["control"], shown["summary"]["status"], shown["summary"]["scored"]) == (
        "finished", "completed", EPISODES,
    )  # fmt: skip
    assert chime.alive() == []
    assert list(Path(chime.environment["XDG_RUNTIME_DIR"]).iterdir()) == []
    home = tmp_path / "home"
    left = {one.name for one in (home / "redis").iterdir()}
    assert {name for name in left if not name.endswith(".lock")} == {"appendonlydir", "server.log"}
    assert chime.json("log", "verify", RUN)["data"]["digest"] == digest
    assert chime.alive() == []


def test_interrupted_and_resumed(chime: CommandLine, there: There, endpoint: Endpoint, digest: str):
    """Ctrl-C ends a run with 130 and the command that goes on with it; that one ends as if nothing had been."""
    endpoint.hold_after(8)
    process = chime.begin(*start(endpoint))
    until(lambda: endpoint.held)
    process.send_signal(signal.SIGINT)
    endpoint.release()
    _, err = chime.ended(process, 130)
    assert f"chime run resume {RUN}" in err
    assert "Traceback" not in err
    assert chime.alive() == []
    assert "run_finished" not in there.kinds()
    chime("run", "resume", RUN)
    assert verified(there) == digest
    kinds = there.kinds()
    assert kinds[-1] == "run_finished"
    assert kinds.count("folded") == EPISODES
    assert there.rq_keys() == [f"{there.prefix}:runs"]


def test_a_killed_worker_is_replaced(chime: CommandLine, there: There, endpoint: Endpoint, digest: str):
    """Kill -9 of the act worker in the middle of episodes changes nothing in the banks."""
    endpoint.hold_after(6)
    process = chime.begin(*start(endpoint))
    until(lambda: endpoint.held)
    # What it begins is its double for a moment, until another program runs there.
    (worker,) = until(lambda: len(found := chime.alive("worker", "act")) == 1 and found)
    os.kill(worker, signal.SIGKILL)
    endpoint.release()
    chime.ended(process)
    assert "worker_lost" not in there.kinds()
    assert there.kinds().count("abandoned") == 0
    assert verified(there) == digest


def test_a_rolling_restart_fails_no_episode(
    chime: CommandLine, there: There, endpoint: Endpoint, digest: str, patient_children: Any
):
    """All workers are drained in the middle of episodes and replaced: no attempt is lost, the banks are as ever."""
    # A worker that stands still for some seconds would be taken for dead, and its jobs for lost.
    chime.environment["PYTHONPATH"] = patient_children("claims")
    endpoint.hold_after(6)
    process = chime.begin(*start(endpoint))
    with redis.Redis.from_url(there.url, decode_responses=True) as client:
        # An act worker alone gets so far; only those that serve are drained.
        until(lambda: endpoint.held and len(client.keys(f"{there.prefix}:workers:*")) == 2)
        serving = client.keys(f"{there.prefix}:workers:*")
        chime("ops", "drain", "--all", "--reason", "new code")
        # Workers hear of it with their next beat; a run that has ended by then restarts nobody.
        until(lambda: all(client.hget(worker, "state") != "serving" for worker in serving))
    endpoint.release()
    _, err = chime.ended(process)
    assert err.count('"worker_restarted"') == 2
    assert there.attempts() == {1}
    assert there.kinds().count("abandoned") == 0
    assert verified(there) == digest


def test_a_homes_server_that_dies_is_started_again(chime: CommandLine, endpoint: Endpoint, digest: str, tmp_path: Path):
    """Kill -9 of the home's own server in the middle of a run: it is back at its address, and the run ends as ever."""
    endpoint.hold_after(12)
    process = chime.begin(*start(endpoint))
    until(lambda: endpoint.held)
    os.kill(json.loads((tmp_path / "home" / "redis" / "server.json").read_text())["pid"], signal.SIGKILL)
    endpoint.release()
    chime.ended(process)
    assert chime.alive() == []
    assert chime.json("log", "verify", RUN)["data"]["digest"] == digest


def test_spread_over_processes(chime: CommandLine, there: There, endpoint: Endpoint, digest: str):
    """Coordinator and workers as processes of their own play a run that somebody else has begun."""
    apart = [
        chime.begin("coordinator"),
        chime.begin("worker", "act", "--slots", "4"),
        chime.begin("worker", "diagnose"),
    ]
    # Begun, then left to the others: the command that began it is killed at once.
    endpoint.hold_after(1)
    beginner = chime.begin(*start(endpoint))
    until(lambda: there.length() > 0)
    beginner.kill()
    endpoint.release()
    until(lambda: there.kinds()[-1:] == ["run_finished"])
    for process in apart:
        process.send_signal(signal.SIGTERM)
    for process in apart:
        _, err = chime.ended(process)
        assert "Traceback" not in err
    until(lambda: chime.alive() == [])
    assert verified(there) == digest


def test_a_worker_ends_with_its_parent(chime: CommandLine, there: There):
    """A worker whose parent's end of its input closes ends by itself."""
    worker = chime.begin("worker", "act", "--with-parent")
    with redis.Redis.from_url(there.url) as client:
        until(lambda: client.keys(f"{there.prefix}:workers:*"))
    assert worker.stdin is not None
    worker.stdin.close()
    worker.stdin = None
    chime.ended(worker)
    assert chime.alive() == []
    assert there.rq_keys() in ([], [f"{there.prefix}:rq:queues"])


def test_a_server_that_lost_the_log_ends_its_run(chime: CommandLine, own_redis_server: Any, endpoint: Endpoint):
    """A server that is replaced by an empty one ends the run under way with 3; a run that never was is named with 2.

    Until then every key on it is one that `chime doctor` knows.
    """
    chime.environment |= {"CHIME_REDIS_URL": own_redis_server.url, "CHIME_REDIS_PREFIX": "p"}
    endpoint.hold_after(12)
    run = chime.begin(*start(endpoint))
    until(lambda: endpoint.held)
    rows = {row["check"]: row for row in json.loads(chime("doctor", "--json")[0])["data"]}
    assert rows["other keys"]["status"] == "ok", rows["other keys"]
    with redis.Redis.from_url(own_redis_server.url) as client:
        client.flushall()
    _, err = chime.ended(run, 3)
    assert f"run {RUN} is gone" in err.strip().splitlines()[-1]
    endpoint.release()
    assert f"no run '{RUN}'" in chime("run", "resume", RUN, code=2)[1]


def test_a_worker_waits_for_a_full_server(chime: CommandLine, own_redis_server: Any):
    """`chime worker` on a full server waits with one line, and SIGTERM ends it in order."""
    chime.environment |= {"CHIME_REDIS_URL": own_redis_server.url, "CHIME_REDIS_PREFIX": "p"}
    with redis.Redis.from_url(own_redis_server.url) as client:
        client.config_set("maxmemory", 1)
        worker = chime.begin("worker", "act")
        until(lambda: "server full, waiting for room" in chime.said(worker))
        assert client.keys() == []
        worker.send_signal(signal.SIGTERM)
        _, err = chime.ended(worker)
    assert err.count("waiting for room") == 1


def test_a_refused_key_pauses_the_run(chime: CommandLine, there: There, endpoint: Endpoint, digest: str):
    """A key that stops working ends the command with 3 and one line; with the right key resume goes on to the end."""
    endpoint.left = 30
    _, err = chime(*start(endpoint, "--in-process"), code=3)
    last = err.strip().splitlines()[-1]
    assert last.startswith("chime: run r stopped:")
    assert f"chime run resume {RUN}" in last
    assert "Traceback" not in err
    assert there.kinds().count("noted") == 1
    events = there.length()
    _, err = chime("run", "resume", RUN, "--base-url", "http://me:secret@127.0.0.1:1/v1", code=2)
    assert "base_url holds a user or password" in err
    assert "secret" not in err
    assert there.length() == events, "no password comes into the log"
    endpoint.left, endpoint.key = 1_000_000, "other"
    chime.environment["OTHER_KEY"] = "other"
    chime("run", "resume", RUN, "--in-process", "--api-key-env", "OTHER_KEY")
    assert there.kinds()[-1] == "run_finished"
    assert verified(there) == digest


def test_an_unknown_model_stops_the_run(chime: CommandLine, there: There, endpoint: Endpoint):
    """A model that the endpoint does not have is named with both ways on; no rate is made of no score."""
    out, err = chime(*start(endpoint, "--in-process", "--model", "no-such-model"), code=3)
    assert f"run {RUN}: no episode scored, banks 0+0" in out
    last = err.strip().splitlines()[-1]
    assert "no-such-model" in last
    assert f"chime run resume {RUN}; for another one, chime run delete {RUN} --force, then start it again" in last
    chime("run", "delete", RUN, "--force")
    assert there.length() == 0


def test_no_endpoint(chime: CommandLine, there: There):
    """An endpoint that does not answer, or refuses the key, ends the start with 3, before anything is begun."""
    _, err = chime("run", "start", "toy", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", *ARGUMENTS, code=3)
    assert "127.0.0.1:9" in err.strip().splitlines()[-1]
    assert "Traceback" not in err
    assert there.length() == 0


# -- banks in Weaviate -------------------------------------------------------------------------------------------------


def sources(chime: CommandLine) -> dict[str, int]:
    """The run's recalls by where they came from."""
    found: dict[str, int] = chime.json("run", "show", RUN)["data"]["recalls"]
    return found


@pytest.mark.timeout(400)
def test_a_homes_weaviate_that_dies_is_started_again(
    chime: CommandLine, endpoint: Endpoint, digest: str, tmp_path: Path, weaviate_tools: Path, patient_children: Any
):
    """Kill -9 of the home's own Weaviate in the middle of a run: it is back, the run ends as ever, its bank whole."""
    chime.environment["PYTHONPATH"] = patient_children("reading", "settling")
    home = tmp_path / "home"
    home.mkdir()
    (home / "tools").symlink_to(weaviate_tools)
    endpoint.hold_after(12)
    process = chime.begin(*start(endpoint, "--bank", "weaviate"))
    until(lambda: endpoint.held)
    server = named(home)
    assert server is not None
    assert server.process is not None
    server.process.signal_group(signal.SIGKILL)
    endpoint.release()
    chime.ended(process)
    assert chime.alive() == []
    assert chime.json("log", "verify", RUN)["data"]["digest"] == digest
    assert set(sources(chime)) <= {"weaviate", "fallback"}
    assert not (home / "weaviate" / "server.json").exists(), "it ends with its last user"
    found = chime.json("memory", "search", RUN, "an order")["data"]
    assert (found["source"], found["version"]) == ("weaviate", EPISODES)
    assert chime.json("memory", "verify", RUN)["data"]["differences"] == []
    assert not (home / "weaviate" / "server.json").exists()


@pytest.fixture
def weaviate(chime: CommandLine, weaviate_server: WeaviateAddress) -> WeaviateAddress:
    """The command line is told of the tests' Weaviate."""
    chime.environment |= {
        "CHIME_WEAVIATE_URL": weaviate_server.http_url,
        "CHIME_WEAVIATE_GRPC_URL": weaviate_server.grpc_url,
        "CHIME_WEAVIATE_API_KEY": weaviate_server.api_key,
    }
    return weaviate_server


def test_a_weaviate_that_does_not_take_us(
    chime: CommandLine, there: There, endpoint: Endpoint, weaviate: WeaviateAddress
):
    """A run is not begun where its bank server refuses the key or does not answer: one line, and the way on."""
    chime.environment["CHIME_WEAVIATE_API_KEY"] = "not-the-key"
    _, err = chime(*start(endpoint, "--bank", "weaviate"), code=2)
    assert "refuses the key" in err.strip().splitlines()[-1]
    assert "not-the-key" not in err
    chime.environment["CHIME_WEAVIATE_URL"] = "http://127.0.0.1:9"
    _, err = chime(*start(endpoint, "--bank", "weaviate"), code=3)
    last = err.strip().splitlines()[-1]
    assert "127.0.0.1:9" in last
    assert "--bank replica" in last
    assert "Traceback" not in err
    assert there.length() == 0


def test_a_run_goes_on_with_another_store(
    chime: CommandLine, there: There, endpoint: Endpoint, digest: str, weaviate: WeaviateAddress
):
    """`run resume --bank` moves a run's recalls to Weaviate in its middle; the log says so, the digest is as ever."""
    endpoint.hold_after(12)
    process = chime.begin(*start(endpoint))
    until(lambda: endpoint.held)
    process.send_signal(signal.SIGINT)
    endpoint.release()
    chime.ended(process, 130)
    chime("run", "resume", RUN, "--bank", "weaviate")
    assert verified(there) == digest
    found = sources(chime)
    assert found["exact"] > 0
    assert found.get("weaviate", 0) + found.get("fallback", 0) > 0
    assert "bank store   weaviate; recalls: exact" in chime("run", "show", RUN)[0]
    assert chime.json("memory", "verify", RUN)["data"]["differences"] == []


def test_a_paused_coordinator_writes_into_a_dead_generation(
    chime: CommandLine, there: There, endpoint: Endpoint, digest: str, weaviate: WeaviateAddress, patient_children: Any
):
    """A holder that is stopped, replaced and wakes up leaves the bank of its successor alone."""
    chime.environment["PYTHONPATH"] = patient_children("reading", "settling")
    coordinators = {chime.begin("coordinator").pid for _ in range(2)}
    for kind in ("act", "diagnose"):
        chime.begin("worker", kind, "--slots", "4")
    endpoint.hold_after(20)
    beginner = chime.begin(*start(endpoint, "--bank", "weaviate"))
    with redis.Redis.from_url(there.url, decode_responses=True) as client:
        key = f"{there.prefix}:{{{RUN}}}"

        def holder() -> tuple[int, int]:
            """Which coordinator holds the lease, and in which term; zeros where none does."""
            name = client.hget(f"{key}:lease", "holder")
            pid = int(str(name).split("-")[-2]) if name else 0
            return (pid, int(client.get(f"{key}:term"))) if pid in coordinators else (0, 0)

        def serving() -> tuple[str, int]:
            """The generation that serves, and the term of its owner; "" and 0 while the owner's does not."""
            owner, pointer, term = client.hmget(f"{key}:bank", "owner", "serving", "term")
            return (owner, int(term)) if pointer and pointer.split()[0] == owner else ("", 0)

        def standing() -> tuple[int, int, str] | None:
            """Holder, term and bank, once the run stands in its middle and its bank is the holder's."""
            (pid, term), (bank, of) = holder(), serving()
            return (pid, term, bank) if endpoint.held and pid and term == of else None

        until(lambda: there.length() > 0)
        beginner.kill()
        while True:
            paused, term, before = until(standing)
            os.kill(paused, signal.SIGSTOP)
            if holder() == (paused, term):
                break
            # Its lease was over before it was stopped: on a slow machine leases move by themselves.
            os.kill(paused, signal.SIGCONT)
        after = until(lambda: (found := serving())[1] > term and found[0])
        os.kill(paused, signal.SIGCONT)
        endpoint.release()
        until(lambda: there.kinds()[-1:] == ["run_finished"])
        # The last versions are published after the run's end.
        until(lambda: (client.hget(f"{key}:bank", "serving") or "").endswith(f" {EPISODES}"))
        until(lambda: serving()[1] > term)
    assert number_of(after) > number_of(before)
    assert verified(there) == digest
    found = chime.json("memory", "verify", RUN)["data"]
    assert (found["version"], found["differences"]) == (EPISODES, [])
    # A successor that begins another one, for an answer that came late, is a successor all the same.
    assert number_of(found["generation"]) >= number_of(after)


def number_of(name: str) -> int:
    """The number of a generation."""
    return int(name.rpartition("_")[2].partition("-")[0])
