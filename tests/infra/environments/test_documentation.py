"""The example of the page on environments works as it stands there."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.environments import host, load
from infra.environments.child import ChildSession
from infra.environments.conformance import check
from infra.environments.in_process import InProcessSession

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The page's Python block as the file `counting.py`."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 30
    path = tmp_path / "counting.py"
    path.write_text(block)
    return path


def adds(*amounts: int) -> list[dict[str, Any]]:
    """Messages that add, then stop."""
    messages: list[dict[str, Any]] = [
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": json.dumps({"amount": n})}}],
        }
        for n in amounts
    ]
    return [*messages, {"role": "assistant", "content": "Done."}]


@pytest.mark.parametrize("name", ["counting:Counting", "cmd:{python} {host} {example}:Counting"])
async def test_the_example_plays(name: str, example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In process and as a program, the example scores a right and a wrong episode."""
    monkeypatch.syspath_prepend(example.parent)
    environment = load(name.format(python=sys.executable, host=host.__file__, example=example), tmp_path)
    assert (await environment.describe()).domains == {"numbers": 2}
    near, _ = await environment.tasks("numbers")
    rewards = []
    for amounts in ((3, 1), (4,)):
        async with environment.session() as session:
            assert isinstance(session, ChildSession | InProcessSession)
            assert (await session.reset(near, "e", 42, {})).messages[0]["content"].startswith("The number is 1")
            for message in adds(*amounts):
                result = await session.step(message)
            assert result.done
            rewards.append((await session.evaluate()).reward)
    assert rewards == [1.0, 0.0]
    await environment.aclose()


async def test_the_example_conforms(example: Path, tmp_path: Path) -> None:
    """The conformance suite has nothing to say against the example."""
    name = f"cmd:{sys.executable} {host.__file__} {example}:Counting"
    rows = [row async for row in check(lambda limits: load(name, tmp_path, limits=limits))]
    assert [row for row in rows if not row.ok] == []
