"""`make real-model`: a real model of 1.5 billion weights plays tasks that resemble each other, on this machine.

    python -m bench.real_model [--tasks N]

Three runs over one stream of tasks: without memory; with memory and the model as its own gate; with memory and a gate
of rules that know the reference answers. Planner and executor are the model in all three. The stream is the seven
families of BFCL's `live_simple`, in turn; what comes of it is counted by the official checker. An episode takes one to
two minutes of one core. Runs of an earlier start go on where they ended.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio

from bench.real_model import report
from bench.real_model.families import DOMAIN, families, later, stream
from bench.real_model.rules import labels
from bench.real_model.rules_endpoint import MODEL as RULES
from bench.real_model.rules_endpoint import rules_endpoint
from bench.real_model.runs import Arm, ChimeFailed, Played, exported, play
from bench.real_model.weights import MODEL, UnknownWeights, weights
from infra import environments
from infra.environments.answers import answer_key as answers_of
from infra.rehearsal.key import AnswerKey, answer_key

ROOT = Path(__file__).parents[2]
#: seconds an episode takes, about: an estimate for whoever waits
_EPISODE_S = 80
#: a stream that shows each family twice and a half
DEFAULT_TASKS = 18


def main(arguments: Sequence[str]) -> int:
    """Fetch, serve, play, count; 3 where the weights or the server cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.real_model", description="A real model, with memory and without."
    )
    parser.add_argument("--tasks", type=int, default=DEFAULT_TASKS, help="length of the stream (at most 87)")
    parser.add_argument("--home", type=Path, default=ROOT / ".chime", help="where BFCL is installed and runs are kept")
    chosen = parser.parse_args(arguments)
    try:
        return demonstration(chosen.home.resolve(), chosen.tasks)
    except (UnknownWeights, ChimeFailed, subprocess.CalledProcessError) as error:
        _tell(f"real-model: {error}")
        return 3
    except KeyboardInterrupt:
        _tell("real-model: interrupted; the same command goes on")
        return 130


def demonstration(home: Path, limit: int) -> int:
    """The three runs and their table."""
    file = weights(home / "models", _tell)
    key = anyio.run(_answers, home)
    tasks = stream(families(key.tasks), limit)
    _tell(f"{len(tasks)} tasks three times: about {3 * len(tasks) * _EPISODE_S // 60} minutes of one core")
    with llama(file) as model, rules_endpoint(key) as rules:
        arms = (
            Arm(name="off", shown="no memory", frozen=True, gate=model, gate_model=MODEL),
            Arm(name="model", shown="memory, the model as gate", frozen=False, gate=model, gate_model=MODEL),
            Arm(name="rules", shown="memory, rules as gate", frozen=False, gate=rules, gate_model=RULES),
        )
        found: dict[str, Played] = {}
        judged: dict[str, str] = {}
        for arm in arms:
            run = f"real-{arm.name}-{len(tasks)}"
            began = time.monotonic()
            play(arm, home, run, tasks, model, MODEL)
            found[arm.shown], trajectories = exported(home, run)
            _tell(f"{arm.shown}: {(time.monotonic() - began) / 60:.1f} minutes")
            if arm.name == "model":
                judged = labels(key, found[arm.shown].scores, trajectories)
    _print(found, judged, tasks)
    return 0


async def _answers(home: Path) -> AnswerKey:
    environment = environments.load("bfcl", home, oracle=True, environ={})
    try:
        return answer_key(await answers_of(environment, [DOMAIN]), "environment bfcl")
    finally:
        await environment.aclose()


@contextmanager
def llama(file: Path) -> Iterator[str]:
    """The model behind llama.cpp's server, in the environment that holds it; the address."""
    server = Path(__file__).with_name("llama_server.py")
    command = [ROOT / ".llama-venv" / "bin" / "python", server, file, "--slots", "2"]
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address, ready = process.stdout.readline().strip(), process.stdout.readline().strip()
        if ready != "ready":
            raise ChimeFailed("the model's server did not start")
        yield address
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def _print(found: dict[str, Played], judged: dict[str, str], tasks: Sequence[str]) -> None:
    first = next(iter(found))
    names = list(found)
    for line in report.scores(found):
        print(line)
    for line in report.comparisons(found, first, set(tasks), "all tasks"):
        print(line)
    for line in report.comparisons(found, first, later(tasks), "last 3/10 of each family"):
        print(line)
    for line in report.agreement(found[names[1]].labels, judged):
        print(line)
    for line in report.caution(len(tasks)):
        print(line)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
