"""What pauses a run: one line and exit 3, and a run that goes on as if nothing had been once the endpoint is well."""

from pathlib import Path
from typing import Any

import pytest
from every_row import ROWS
from hostile_command import ALONE, Command, contents, digests
from hostile_mix import serving
from hostile_rows import Row
from hostile_wire import Asked, Reply

EPISODES = 8
#: requests that are answered between two pauses
HEALTHY = 6


class Pausing:
    """Answers well for a while, then as a row says for as long as it is there."""

    def __init__(self) -> None:
        self.row: Row | None = None
        self.left = HEALTHY

    def meet(self, row: Row | None) -> None:
        """From so many requests on."""
        self.row, self.left = row, HEALTHY

    def __call__(self, asked: Asked) -> Reply:
        self.left -= 1
        return self.row.play(asked) if self.row is not None and self.left < 0 else None


def one_of_each_kind() -> dict[str, Row]:
    """Kind of pause -> a row that leads to it, whatever role asks."""
    found: dict[str, Row] = {}
    for row in ROWS:
        if row.pauses and len(row.roles) == 3 and not (row.endpoint or row.unseen):
            found.setdefault(str(row.expect("gate")["paused"]), row)
    return found


@pytest.mark.timeout(600)
def test_a_run_that_is_paused_again_and_again(tmp_path: Path, redis_server: Any, redis_prefix: str) -> None:
    """Each kind of pause ends the command with 3 and one line with the way on; the run learns as if undisturbed."""
    command = Command(folder=tmp_path, redis_url=redis_server.url, prefix=redis_prefix)
    pausing, undisturbed = Pausing(), Pausing()
    with serving(pausing, undisturbed) as (server, well):
        kinds = one_of_each_kind()
        assert set(kinds) == {"key", "quota", "model_not_found", "not_found", "redirect"}
        for place, (kind, row) in enumerate(sorted(kinds.items())):
            pausing.meet(row)
            arguments = ("run", "resume", "r", "--in-process")
            url = server.hostile_url
            ended = command(*arguments) if place else command.start("r", url, "--in-process", episodes=EPISODES)
            assert ended.code == 3, (kind, ended.err)
            assert ended.last.startswith("chime: run r stopped: "), ended.last
            assert "chime run resume r" in ended.last
            assert "Traceback" not in ended.err
        pausing.meet(None)
        assert command("run", "resume", "r", "--in-process").code == 0
        assert command.start("well", well.hostile_url, "--in-process", episodes=EPISODES, settings=ALONE).code == 0
    paused, whole = command.log("r"), command.log("well")
    assert [one.kind for one in paused].count("noted") == len(kinds)
    assert digests(paused) == digests(whole)
    assert contents(paused) == contents(whole)
