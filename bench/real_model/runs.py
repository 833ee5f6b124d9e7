"""The runs of the demonstration, started with the `chime` command as anybody would, and what their logs say."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from runtime.task import Message

CHIME = str(Path(sys.executable).parent / "chime")


class ChimeFailed(Exception):
    """A command that ended with another code than 0 or 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to play the stream."""

    name: str
    #: what the table calls it
    shown: str
    #: learns nothing, and so remembers nothing
    frozen: bool
    #: address of the gate's model, and its name there
    gate: str
    gate_model: str


@dataclass(slots=True)
class Played:
    """What a run's log says, by task."""

    run: str
    scores: dict[str, bool] = field(default_factory=dict)
    #: of judged episodes; `degraded: <reason>` for one without a judgement
    labels: dict[str, str] = field(default_factory=dict)
    #: how many memories were shown
    recalled: dict[str, int] = field(default_factory=dict)
    banks: dict[str, int] = field(default_factory=dict)


def play(arm: Arm, home: Path, run: str, tasks: Sequence[str], planner: str, model: str) -> None:
    """Play `tasks` one after the other; a run of that name goes on.

    Args:
        arm: what the run remembers, and who judges it.
        home: where BFCL is installed, and the run is kept.
        run: its name.
        tasks: ids, in the order in which they are played.
        planner: address of the model that plans and executes.
        model: its name there.

    Raises:
        ChimeFailed: with what the command said.
    """
    settings = {
        "models.tools": "text",
        "models.timeout_s": 3600,
        "models.deadline_s": 7200,
        "roles.planner.max_tokens": 128,
        "roles.executor.max_tokens": 256,
        "roles.gate.max_tokens": 384,
        "roles.gate.base_url": arm.gate,
        "roles.gate.model": arm.gate_model,
        "episode.max_steps": 3,
        "episode.budget_s": 7200,
        # One slot of the server holds four thousand tokens.
        "episode.trajectory_chars": 4000,
        "models.context_tokens": 4096,
    }
    words = [CHIME, "run", "start", "bfcl", "--run", run, "--home", str(home), "--in-process"]
    words += [part for task in tasks for part in ("--task", task)]
    words += ["--ordering", "canonical", "--concurrency", "1", "--lag", "1", "--base-url", planner, "--model", model]
    words += ["--api-key-env", "", *(["--frozen"] if arm.frozen else [])]
    words += [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    done = subprocess.run(words, check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode not in (0, 1):
        raise ChimeFailed(f"chime run start ended with {done.returncode}")


def exported(home: Path, run: str) -> tuple[Played, dict[str, list[Message]]]:
    """What the log of a run says, and the trajectory of each task."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        words = [CHIME, "log", "export", run, "-o", str(path), "--with-blobs", "--home", str(home)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        bodies = path.with_suffix(".bodies") / "blobs"
        trajectories = {
            _task(event, events[0]): _body(bodies / f"{event['data']['trajectory']}.zst")
            for event in events
            if event["kind"] == "executed"
        }
    return played(run, events), trajectories


def _body(path: Path) -> list[Message]:
    messages: list[Message] = json.loads(zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()))
    return messages


def _task(event: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """Of an episode's event; "" for others."""
    tasks: list[str] = head["data"]["tasks"]
    number = event["stream"].removeprefix("episode-")
    return tasks[int(number) % len(tasks)] if number != event["stream"] else ""


def played(run: str, events: Sequence[dict[str, Any]]) -> Played:
    """The scores, labels and banks in a run's events."""
    found = Played(run=run)
    for event in events:
        kind, data, task = event["kind"], event["data"], _task(event, events[0])
        if kind == "retrieved":
            chosen = sum(candidate["chosen"] for candidate in data["candidates"])
            found.recalled[task] = found.recalled.get(task, 0) + chosen
        elif kind == "scored":
            found.scores[task] = data["success"]
        elif kind == "diagnosed":
            found.labels[task] = f"degraded: {data['degraded']}" if data["degraded"] else data["label"]
        elif kind == "folded":
            for operation in data["operations"]:
                change = {"insert": 1, "prune": -1}.get(operation["op"], 0)
                found.banks[operation["bank"]] = found.banks.get(operation["bank"], 0) + change
    return found
