"""The host by itself, spoken to line by line as any client would."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.environments import host, toy

HOST, TOY = host.__file__, f"{toy.__file__}:Toy"


class Client:
    """A host process and the lines to and from it."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HOST, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def say(self, line: bytes) -> dict[str, Any]:
        """The answer to a line."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to an operation."""
        return self.say(json.dumps({"id": 5, "op": op, **fields}).encode())


@pytest.fixture
def client() -> Iterator[Client]:
    """A toy host without `--oracle`."""
    served = Client(TOY)
    yield served
    served.process.kill()
    served.process.communicate()


def test_garbage_lines_are_answered_and_survived(client: Client) -> None:
    """A line that is no request gets an error with id null; the next one is served."""
    for line in (b"garbage", b"[]", b'"text"', b"\xff\xff", b"{", b"[" * 100_000):
        answer = client.say(line)
        assert (answer["id"], answer["ok"], answer["error"]["kind"]) == (None, False, "malformed")
    assert client.ask("describe")["result"]["protocol"] == 1


def test_a_line_in_pieces_is_one_request(client: Client) -> None:
    """Requests end at the newline, wherever the writes did."""
    assert client.process.stdin is not None
    client.process.stdin.write(b'{"id": 1, ')
    client.process.stdin.flush()
    assert client.say(b'"op": "describe"}')["id"] == 1


def test_operations_out_of_order_are_refused(client: Client) -> None:
    """Steps and evaluations need an episode; an evaluation ends it."""
    assert client.ask("step", action={})["error"]["kind"] == "no_episode"
    reset = {"episode_id": "e", "domain": "shop", "task_id": "shop-gift-0"}
    assert client.ask("reset", **reset)["ok"]
    assert client.ask("evaluate")["result"]["reward"] == 0.0
    assert client.ask("evaluate")["error"]["kind"] == "no_episode"
    assert client.ask("dance")["error"]["kind"] == "unknown_op"


def test_reference_solutions_and_faults_need_the_flag(client: Client) -> None:
    """Without `--oracle` neither gold data nor a planted fault is to be had."""
    for op in ("oracle", "fault"):
        answer = client.ask(op, domain="shop", task_id="shop-gift-0", kind="raise")
        assert answer["error"]["kind"] == "refused"


def test_planted_faults_spoil_one_answer() -> None:
    """With `--oracle`, a fault strikes the next answer of its operation and no other."""
    served = Client("--oracle", TOY)
    served.ask("fault", **{"in": "describe", "kind": "raise"})
    assert served.ask("describe")["error"]["message"] == "a planted fault"
    served.ask("fault", **{"in": "describe", "kind": "huge"})
    assert len(served.ask("describe")["result"]["padding"]) == host.HUGE
    served.ask("fault", **{"in": "describe", "kind": "print"})
    assert served.ask("describe")["ok"]
    _, noise = served.process.communicate(b'{"id": 1, "op": "close"}\n')
    assert b"more noise" in noise


def test_close_ends_with_zero(client: Client) -> None:
    """`close` is answered with an empty object, then the process ends with exit code 0."""
    assert client.ask("close")["result"] == {}
    assert client.process.wait(120) == 0


def test_end_of_input_closes_the_benchmark(tmp_path: Path) -> None:
    """When the client goes away, the benchmark gets its `close` and the process ends."""
    file, mark = tmp_path / "marking.py", tmp_path / "closed"
    file.write_text(
        "import __main__\n__main__.GRACE_S = 600  # a slow machine takes its time\n"
        "class Benchmark:\n    def describe(self): return {'env': 'marking', 'domains': {}}\n"
        f"    def close(self): open({str(mark)!r}, 'w').close()\n"
    )
    served = Client(str(file))
    assert served.ask("describe")["ok"]
    served.process.communicate()
    assert mark.exists()


def test_the_benchmark_finds_its_neighbours_after_packages(tmp_path: Path) -> None:
    """A benchmark file can import what lies beside it, but nothing there hides the standard library."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "neighbour.py").write_text("NAME = 'found'")
    file = tmp_path / "importing.py"
    file.write_text(
        "import json, neighbour\nclass Named:\n    def describe(self): return {'env': neighbour.NAME, 'domains': {}}\n"
    )
    served = Client(f"{file}:Named")
    assert served.ask("describe")["result"]["env"] == "found"
    served.process.communicate()
