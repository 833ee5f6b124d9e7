"""`chime call` and `--record`, `--replay`: what models were asked, asked again, and played without them."""

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from rehearsal_endpoint import rehearsal_endpoint

from infra import environments
from infra.environments.answers import answer_key as answers_of
from infra.rehearsal import MODEL
from infra.rehearsal.key import AnswerKey, answer_key
from infra.rehearsal.planting import RehearsalSettings


def serving(folder: Path, settings: RehearsalSettings) -> AbstractContextManager[str]:
    """The address of a model that knows the toy tasks."""

    async def key() -> AnswerKey:
        environment = environments.load("toy", folder, oracle=True, environ={})
        try:
            return answer_key(await answers_of(environment), "toy")
        finally:
            await environment.aclose()

    return rehearsal_endpoint(key, settings)


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "oracle", RehearsalSettings()) as url:
        yield url


def toy(url: str, run: str) -> list[str]:
    words = [
        "run",
        "start",
        "toy",
        "--limit",
        "3",
        "--run",
        run,
        "--in-process",
        "--concurrency",
        "2",
        "--model",
        MODEL,
    ]
    return [*words, "--api-key-env", "", *(["--base-url", url] if url else [])]


def test_calls_are_listed_shown_and_asked_again(chime, rehearsal):
    """Every call of a run; one with what was sent and what came, and the same answer when it is asked once more."""
    chime(*toy(rehearsal, "a"))
    calls = chime.json("call", "list", "a")["data"]
    assert {one["role"] for one in calls} == {"planner", "executor", "gate"}
    assert {one["requests"] for one in calls} == {1}
    assert [one["id"] for one in chime.json("call", "list", "a", "--episode", "1", "--role", "gate")["data"]] == [
        "episode-1/gate/1"
    ]
    assert chime.json("call", "list", "a", "--failed")["data"] == []
    chime("call", "list", "a", "--failed")
    assert "no such calls" in chime.err
    [shown] = chime.json("call", "show", "a", "episode-1/planning/1")["data"]
    assert shown["wire"]["sent"]["messages"] == shown["messages"]
    assert shown["wire"]["sent"]["model"] == MODEL
    assert '"choices"' in shown["wire"]["received"]
    assert shown["answer"]["content"] in chime("call", "show", "a", "episode-1/planning/1")
    assert "the same answer" in chime("call", "replay", "a", "episode-1/planning/1")
    chime("call", "show", "a", "episode-1/planning/9", code=2)
    assert "episode-1/planning/1" in chime.err


def test_another_answer_is_a_difference(chime, rehearsal, tmp_path):
    """A question to a model that plans otherwise: the lines that differ, and 1; to one that is not there: 3."""
    chime(*toy(rehearsal, "a"), "-s", "recording.record=" + str(tmp_path / "answers"))
    with serving(tmp_path / "oracle", RehearsalSettings(wrong_plan=1.0, rescued=0.0)) as other:
        differ = [
            chime.json("call", "replay", "a", f"episode-{t}/planning/1", "--base-url", other, code=code)["data"]["same"]
            for t, code in ((0, 1), (1, 1), (2, 1))
        ]
        out = chime("call", "replay", "a", "episode-0/planning/1", "--base-url", other, code=1)
    assert differ == [False, False, False]
    assert "--- recorded" in out
    assert "+++ now" in out
    chime("call", "replay", "a", "episode-0/planning/1", "--base-url", "http://127.0.0.1:1/v1", code=3)


def test_nobody_waits_for_a_silent_endpoint(chime, rehearsal):
    """Asking again is bounded by itself, whatever patience the run had: one line and 3."""
    chime(*toy(rehearsal, "a"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        chime("call", "replay", "a", "episode-0/planning/1", "--base-url", url, "--timeout", "0.5", code=3)
    assert "within 0.5 s" in chime.err


def test_a_dry_run_looks_for_what_is_to_be_played(chime, rehearsal):
    """Before anything is started, and nothing is made."""
    chime(*toy("", "a"), "--replay", "answers", "--dry-run", code=2)
    assert "holds no recorded answers" in chime.err
    chime(*toy(rehearsal, "a"), "--record", "answers", "--dry-run")
    assert not Path("answers").exists()


def test_a_run_is_played_without_its_endpoint(chime, rehearsal, folder):
    """Recorded once, played under another name and with another timing: the same banks, and nobody is asked."""
    chime(*toy(rehearsal, "a"), "--record", "answers")
    first = chime.json("run", "show", "a")["data"]
    chime(*toy("", "b"), "--replay", "answers")
    second = chime.json("run", "show", "b")["data"]
    assert (second["digest"], second["successes"], second["attributions"]) == (
        first["digest"], first["successes"], first["attributions"],
    )  # fmt: skip
    assert second["labels"] == ["replay"]
    assert all(one["requests"] == 0 for one in chime.json("call", "list", "b")["data"])
    assert first["labels"] == ["rehearsal"]


def test_a_missing_answer_stops_the_run(chime, rehearsal, folder):
    """One line that names the call, 3, and on with it once somebody may be asked."""
    chime(*toy(rehearsal, "a"), "--record", "answers")
    for path in (folder / "answers").rglob("episode-2.gate.1.json"):
        path.unlink()
    chime(*toy("", "b"), "--replay", "answers", code=3)
    assert "no answer for call episode-2/gate/1" in chime.err
    assert "chime run resume b --loose --base-url URL" in chime.err
    chime("run", "resume", "b", "--in-process", "--loose", code=2)
    assert "give --base-url URL" in chime.err
    chime("call", "replay", "b", "episode-2/planning/1", code=2)
    assert "give --base-url URL" in chime.err
    chime("run", "resume", "b", "--in-process", "--loose", "--base-url", rehearsal)
    assert chime.json("run", "show", "b")["data"]["digest"] == chime.json("run", "show", "a")["data"]["digest"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replay", "nothing"], "holds no recorded answers"),
        (["--record", "/proc/answers"], "cannot be recorded"),
        (["-s", "recording.record=answers"], "must be a path from /"),
        (["--loose"], "give that too"),
    ],
    ids=["nothing recorded", "nowhere to record", "half a path", "nothing to be loose with"],
)
def test_unfit_folders_are_refused(chime, words, told):
    """Before anything is started: one line, 2."""
    chime(*toy("http://127.0.0.1:1/v1", "a"), *words, code=2)
    assert told in chime.err
