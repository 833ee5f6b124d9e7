"""The queries of docs/memory.md for a client of one's own, run against a real bank as they stand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.weaviate_address import WeaviateAddress

NAME = "docs/memory.md"
_CLIENT = re.compile(r"<!-- client -->\n```(\w+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def variables(tmp_path: Path, root: Path, weaviate_server: WeaviateAddress) -> dict[str, str]:
    """What the page's examples read: a server, its key, and the bank of a golden log."""
    given = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CHIME_")},
        "CHIME_WEAVIATE_URL": weaviate_server.http_url,
        "CHIME_WEAVIATE_GRPC_URL": weaviate_server.grpc_url,
        "CHIME_WEAVIATE_API_KEY": weaviate_server.api_key,
        "CHIME_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(root),
    }

    def chime(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "workers", *arguments, "--json"], env=given, cwd=tmp_path, capture_output=True,
            text=True, timeout=250, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["data"]

    chime("log", "import", str(root / "tests/golden/schema-1/seeded.jsonl"))
    return {**given, "BANK": chime("memory", "rebuild", "golden-seeded")["generation"]}


def test_the_examples_run(page: Callable[[str], Any], variables: dict[str, str], tmp_path: Path) -> None:
    """Each example ends well, and finds what is in the bank."""
    examples = dict(_CLIENT.findall(page(NAME).text))
    assert set(examples) == {"python", "sh"}
    said = {}
    for language, text in examples.items():
        file = tmp_path / f"example.{language}"
        file.write_text(text)
        program = [sys.executable, str(file)] if language == "python" else ["bash", "-e", str(file)]
        done = subprocess.run(program, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        said[language] = done.stdout
    lines = dict(line.split(": ", 1) for line in said["python"].splitlines())
    assert int(lines["memories"]) > 0
    assert "planning-" in lines["by words"]
    assert "planning-" in lines["most valued"]
    assert lines["like it"].startswith("[('")
    objects, found = re.split(r"\n(?=\{\"data\")", said["sh"].replace("}{", "}\n{"), maxsplit=1)
    assert json.loads(objects)["objects"][0]["properties"]["memory"]
    assert "errors" not in json.loads(found)
    assert json.loads(found)["data"]["Get"]["PlanningMemory"]
