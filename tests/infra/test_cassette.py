"""Recorded answers: what is written down is played, to whoever asks the same, and nothing is made up."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.errors import BadInput
from events.ids import RunId, StreamId
from infra.cassette import Player, Recorder, assert_recorded, begin
from runtime.errors import ModelRefused, ModelUnavailable, RunStopped
from runtime.ports import CallKey, ChatAnswer, ChatRequest, TokenUsage, ToolCall

NAMES = {"executor": "m", "planner": "m"}
KEY = CallKey(run=RunId("r"), stream=StreamId("episode-1"), stage="execution", ordinal=3)
OTHER = replace(KEY, run=RunId("s"), stream=StreamId("episode-2"))
REQUEST = ChatRequest(role="executor", messages=[{"role": "user", "content": "hello"}], schema={"type": "object"})
ANSWER = ChatAnswer(
    content="fine",
    tool_calls=[ToolCall(id="c", name="look", arguments="{}")],
    finish_reason="stop",
    usage=TokenUsage(prompt_tokens=3),
    model="m-1",
    flags=["text_call"],
)


class Model:
    """Answers with one thing after the other."""

    def __init__(self, *outcomes: ChatAnswer | Exception) -> None:
        self._outcomes = list(outcomes)
        self.asked = 0

    async def complete(self, request: ChatRequest, key: CallKey) -> ChatAnswer:
        self.asked += 1
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def files(folder: Path, pattern: str = "*") -> list[Path]:
    return [path for path in folder.rglob(pattern) if path.is_file()]


async def recorded(folder: Path, *outcomes: Any, key: CallKey = KEY, request: ChatRequest = REQUEST) -> None:
    begin(folder)
    model = Recorder(Model(*outcomes), folder, NAMES)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            with pytest.raises(type(outcome)):
                await model.complete(request, key)
        else:
            assert await model.complete(request, key) is outcome


async def test_what_was_answered_is_played(tmp_path: Path) -> None:
    """Every field of the answer, to the same call of another run."""
    await recorded(tmp_path, ANSWER)
    assert await Player(None, tmp_path, NAMES).complete(REQUEST, replace(KEY, run=RunId("again"))) == ANSWER


async def test_each_call_has_its_own_answer(tmp_path: Path) -> None:
    """The same asked twice and answered in two ways: each call gets its own, a third one the first of them by name."""
    other = replace(ANSWER, content="else")
    await recorded(tmp_path, other, key=OTHER)
    await recorded(tmp_path, ANSWER)
    player = Player(None, tmp_path, NAMES)
    assert await player.complete(REQUEST, OTHER) == other
    assert await player.complete(REQUEST, KEY) == ANSWER
    assert await player.complete(REQUEST, replace(KEY, stream=StreamId("episode-9"))) == ANSWER


@pytest.mark.parametrize(
    "error",
    [
        ModelRefused("content_filter", "no", 400),
        ModelUnavailable("timeout", "late", None),
    ],
    ids=lambda error: error.kind,
)
async def test_what_was_refused_is_refused_again(tmp_path: Path, error: ModelRefused | ModelUnavailable) -> None:
    """With kind, status and the same words."""
    await recorded(tmp_path, error)
    with pytest.raises(type(error)) as raised:
        await Player(None, tmp_path, NAMES).complete(REQUEST, KEY)
    assert (raised.value.kind, raised.value.status, str(raised.value)) == (error.kind, error.status, str(error))


async def test_an_answer_takes_the_place_of_an_error(tmp_path: Path) -> None:
    """A later attempt got one; an error after an answer changes nothing."""
    await recorded(tmp_path, ModelUnavailable("timeout", "late"), ANSWER, ModelUnavailable("timeout", "late"))
    assert await Player(None, tmp_path, NAMES).complete(REQUEST, KEY) == ANSWER


async def test_a_stop_of_the_run_is_no_answer(tmp_path: Path) -> None:
    """A key that was refused is nothing to be played."""
    await recorded(tmp_path, RunStopped("key", "401"))
    with pytest.raises(RunStopped, match="no answer"):
        await Player(None, tmp_path, NAMES).complete(REQUEST, KEY)


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, messages=[{"role": "user", "content": "hello!"}]),
        replace(REQUEST, schema=None),
        replace(REQUEST, role="planner"),
        replace(REQUEST, tools=[{"type": "function"}]),
    ],
    ids=["other words", "no schema", "another role", "with tools"],
)
async def test_another_request_has_no_answer(tmp_path: Path, request_: ChatRequest) -> None:
    """Strictly the run stops and names the call; loosely the endpoint is asked."""
    await recorded(tmp_path, ANSWER)
    with pytest.raises(RunStopped, match="episode-1/execution/3") as stopped:
        await Player(None, tmp_path, NAMES).complete(request_, KEY)
    assert stopped.value.kind == "not_recorded"
    other = replace(ANSWER, content="asked")
    assert await Player(Model(other), tmp_path, NAMES).complete(request_, KEY) == other


async def test_another_model_has_no_answer(tmp_path: Path) -> None:
    """What one model said is not put into another one's mouth."""
    await recorded(tmp_path, ANSWER)
    with pytest.raises(RunStopped):
        await Player(None, tmp_path, {"executor": "larger"}).complete(REQUEST, KEY)


async def test_what_is_played_asks_nobody(tmp_path: Path) -> None:
    """Not even loosely, where the answer is there."""
    await recorded(tmp_path, ANSWER)
    model = Model()
    await Player(model, tmp_path, NAMES).complete(REQUEST, KEY)
    assert model.asked == 0


async def test_a_damaged_answer_stops_the_run(tmp_path: Path) -> None:
    """One line that names the file; nothing is guessed from half of it."""
    await recorded(tmp_path, ANSWER)
    [path] = files(tmp_path, "episode-*.json")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RunStopped, match=path.name):
        await Player(None, tmp_path, NAMES).complete(REQUEST, KEY)


async def test_answers_are_for_their_owner_and_whole(tmp_path: Path) -> None:
    """Nobody else reads them, and no unfinished file stays."""
    await recorded(tmp_path, ANSWER)
    found = files(tmp_path)
    assert sorted(path.suffix for path in found) == [".json", ".json"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}


async def test_a_folder_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    """A full or lost disk is no reason to lose answers silently."""
    begin(tmp_path)
    recorder = Recorder(Model(ANSWER), tmp_path / "cassette.json", NAMES)
    with pytest.raises(RunStopped) as stopped:
        await recorder.complete(REQUEST, KEY)
    assert stopped.value.kind == "recording"


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Recording goes into a new, an empty or a recorded folder."""
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadInput, match="something else"):
        begin(tmp_path)
    begin(tmp_path / "new" / "deep")
    begin(tmp_path / "new" / "deep")


@pytest.mark.parametrize(
    ("head", "words"),
    [(None, "no recorded answers"), ("{", "damaged"), ("[]", "another version"), ('{"format": 99}', "another version")],
)
def test_what_cannot_be_played_is_refused(tmp_path: Path, head: str | None, words: str) -> None:
    """One line that says what is wrong, before a run begins."""
    if head is not None:
        (tmp_path / "cassette.json").write_text(head)
    with pytest.raises(BadInput, match=words):
        assert_recorded(tmp_path)


async def test_the_format_is_as_described(tmp_path: Path) -> None:
    """For readers of other programs: a file a call, by the hash of model and request."""
    await recorded(tmp_path, ANSWER)
    [path] = files(tmp_path, "episode-*.json")
    assert path.name == "episode-1.execution.3.json"
    assert path.parent.name.startswith(path.parent.parent.name)
    assert len(path.parent.name) == 64
    said = json.loads(path.read_text())
    assert (said["call"], said["model"], said["answer"]["content"]) == ("episode-1/execution/3", "m", "fine")
