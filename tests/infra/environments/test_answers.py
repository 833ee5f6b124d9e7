"""Answer keys, written for the rehearsal model and nobody else."""

import json
from pathlib import Path

from infra.environments import load
from infra.environments.answers import dump_answer_key
from infra.environments.toy import Toy


async def test_a_key_holds_every_task_of_the_domains(tmp_path: Path) -> None:
    """The file maps task ids to domain and answers, and only its owner can read it."""
    environment, path = load("toy", tmp_path, oracle=True), tmp_path / "key.json"
    assert await dump_answer_key(environment, path, ["shop"]) == 36
    assert path.stat().st_mode & 0o777 == 0o600
    key = json.loads(path.read_bytes())
    assert list(key) == [task["task_id"] for task in Toy().tasks("shop")]
    assert key["shop-gift-0"] == {"domain": "shop", **Toy().oracle("shop", "shop-gift-0")}
    assert await dump_answer_key(environment, path) == 72
    await environment.aclose()
