"""`chime model`: the rehearsal endpoint as a process, its key, and a gate scored against its truth."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infra.rehearsal.planting import Planted
from infra.rehearsal.scoring import plan_sha256
from infra.rehearsal.truth import Told, Truth

PROJECT = Path(__file__).parents[3]


@contextmanager
def rehearsing(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as a process of its own, and the first line it prints."""
    argv = [sys.executable, "-m", "workers", "model", "rehearse", *arguments]
    with subprocess.Popen(
        argv, cwd=folder, env={**os.environ, "PYTHONPATH": str(PROJECT)}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def asked(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - a loopback address of ours
        return json.load(answer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal(folder: Path, number: signal.Signals) -> None:
    """The address is printed once it answers; a signal ends it with code 0 and no traceback."""
    with rehearsing(folder, "--domain", "shop") as (process, line):
        served = asked(f"{line.strip()}/models")
        assert served["data"][0]["owned_by"] == "chime-rehearsal"
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == 0
    assert "answers of 36 tasks" in err
    assert "Traceback" not in err


def test_the_envelope_says_what_is_served(folder: Path) -> None:
    """`--json` gives address, label and every rate."""
    with rehearsing(folder, "--json", "--truth", "t.jsonl", "--misled", "0.5") as (process, line):
        body = json.loads(line)
        data = body["data"]
        assert asked(data["base_url"].removesuffix("/v1") + "/health")["tasks"] == data["tasks"] == 72
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert (body["schema"], data["label"], data["truth"], data["settings"]["misled"]) == (
        1, "rehearsal", "t.jsonl", 0.5,
    )  # fmt: skip


def test_a_key_is_dumped_and_served(chime: Any, folder: Path) -> None:
    """A dumped key serves the same tasks; only its owner can read it."""
    assert chime.json("model", "rehearse", "--env", "toy", "--dump-key", "key.json")["data"]["tasks"] == 72
    assert (folder / "key.json").stat().st_mode & 0o777 == 0o600
    with rehearsing(folder, "--key", "key.json") as (process, line):
        assert asked(line.strip().removesuffix("/v1") + "/health") == {"status": "ok", "tasks": 72}
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_a_port_in_use_is_one_line(chime: Any) -> None:
    """Another program's port ends with 2 and says which."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        chime("model", "rehearse", "--port", str(port), code=2)
    assert f"port {port} on 127.0.0.1 is in use" in chime.err
    assert "Traceback" not in chime.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--key", "none.json"], "cannot read the answer key"),
        (["--key", "none.json", "--env", "toy"], "--key replaces"),
        (["--env", "nothing"], "toy"),
        (["--reliability", "1.5"], "'--reliability': 1.5 is not in the range"),
        (["--truth", "no/truth.jsonl"], "no/truth.jsonl: there is no folder"),
    ],
)
def test_bad_input_is_one_line(chime: Any, arguments: list[str], said: str) -> None:
    """Each mistake ends with 2 and says what it is."""
    chime("model", "rehearse", *arguments, code=2)
    assert said in chime.err


def test_an_environment_that_is_not_installed(chime: Any) -> None:
    """Answers of a benchmark that is not there end with 3 and say how to install it."""
    chime("model", "rehearse", "--env", "bfcl", code=3)
    assert "chime env install bfcl" in chime.err


def truths(labels: dict[str, Any], shown: dict[str, tuple[int, int]], misleading: dict[str, list[str]]) -> bytes:
    """A side file about the made run: task -> true label."""
    lines = []
    for task, label in labels.items():
        planning, execution = shown.get(task, (0, 0))
        success = task in ("task-0", "task-1", "task-2")
        one = Truth(
            task=task, success=success, fault="none", label=label, misleading=misleading.get(task, []),
            planted=Planted(), told=Told(label=label, confidence_e4=8000, misleading=[]),
            plan=plan_sha256("first this, then that"), shown={"planning": planning, "execution": execution},
        )  # fmt: skip
        lines.append(msgspec.json.encode(one))
    return b"\n".join(lines) + b"\n"


def test_score_gate(chime: Any, uploaded: Callable[[Any], None], made_run: Any, folder: Path) -> None:
    """The table counts each judged episode once, and the envelope holds the same with its intervals."""
    made = made_run()
    uploaded(made)
    shown = {}
    for one in made.events:
        if one.kind == "diagnosed":
            retrieved = json.loads(one.data)["retrieved"]
            shown[f"task-{one.stream.split('-')[1]}"] = (len(retrieved["planning"]), len(retrieved["execution"]))
    labels = {
        "task-0": "planning", "task-1": "both", "task-2": "both", "task-3": "none", "task-4": "none", "task-5": "none",
    }  # fmt: skip
    (folder / "truth.jsonl").write_bytes(truths(labels, shown, {"task-3": ["P1"], "task-5": ["P1"]}))
    body = chime.json("model", "score-gate", made.run, "--truth", "truth.jsonl")
    data = body["data"]
    assert (body["run"], body["labels"]) == (made.run, ["rehearsal"])
    assert (data["n"], data["unmatched"], data["degraded"]) == (6, 0, 0)
    assert data["confusion"]["both"] == {"planning": 0, "execution": 1, "both": 1, "none": 0}
    assert data["accuracy"]["estimate"] == pytest.approx(5 / 6)
    assert data["misleading"]["both"] == 1
    out = chime("model", "score-gate", "--truth", "truth.jsonl")
    assert "6 judged episodes" in out
    assert "accuracy" in out
    assert "83%" in out


def test_score_gate_without_anything_to_score(
    chime: Any, uploaded: Callable[[Any], None], made_run: Any, folder: Path
) -> None:
    """A truth of another run, an unreadable one, a missing run: one line each, code 2."""
    made = made_run()
    uploaded(made)
    (folder / "other.jsonl").write_bytes(truths({"elsewhere": "none"}, {}, {}))
    chime("model", "score-gate", made.run, "--truth", "other.jsonl", code=2)
    assert "says nothing about run" in chime.err
    (folder / "bad.jsonl").write_text("{}\n")
    chime("model", "score-gate", made.run, "--truth", "bad.jsonl", code=2)
    assert "bad.jsonl, line 1" in chime.err
    chime("model", "score-gate", "none-such", "--truth", "other.jsonl", code=2)
    assert "no run" in chime.err


def test_the_models_of_the_roles_are_listed(chime, monkeypatch):
    """The bare noun shows what each role would be asked with, whether its key is there, and no secret."""
    monkeypatch.setenv("THE_KEY", "sk-secret-of-mine")
    (Path.cwd() / "chime.toml").write_text(
        '[models]\nmodel = "a"\nbase_url = "http://me:hidden@127.0.0.1:1/v1"\napi_key_env = "THE_KEY"\n'
        '[roles.gate]\nmodel = "b"\napi_key_env = "OTHER"\n[prices."b"]\ninput = 0.5\noutput = 2\n'
    )
    rows = {one["role"]: one for one in chime.json("model")["data"]}
    assert [(rows[role]["model"], rows[role]["key_set"]) for role in ("planner", "executor", "gate")] == [
        ("a", True), ("a", True), ("b", False),
    ]  # fmt: skip
    assert rows["gate"]["price"] == {"input": 0.5, "output": 2}
    out = chime("model")
    assert "THE_KEY (set)" in out
    assert "input 0.5, output 2" in out
    assert "hidden" not in out + json.dumps(rows)
    assert "secret" not in out + json.dumps(rows)
    Path("chime.toml").unlink()
    chime("model")
    assert "--model and --base-url" in chime.err
