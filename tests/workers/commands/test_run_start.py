"""What `chime run start` takes: numbers in their range, options of the environment, parts of a protocol."""

import json
import shlex
from itertools import product
from pathlib import Path

import pytest
from rehearsal_endpoint import rehearsal_endpoint

from infra import environments
from infra.environments.answers import answer_key as answers_of
from infra.rehearsal import MODEL
from infra.rehearsal.key import AnswerKey, answer_key
from infra.rehearsal.planting import RehearsalSettings
from runtime.prompting import load_prompts

#: enough for a run, at an address where nobody is
NOWHERE = ("--model", "m", "--base-url", "http://127.0.0.1:1/v1")


def only_line(chime) -> str:
    (line,) = chime.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("option", "number"),
    [
        *product(["--limit", "--hosts", "--slots", "--concurrency", "--epochs"], ["0", "-1", "x"]),
        # 0 of them leave the episodes to workers that somebody else has started.
        *product(["--processes"], ["-1", "x"]),
    ],
)
def test_a_number_of_nothing(chime, option, number):
    """It is refused by name before anything is begun: no worker, no host and no task would be a run that never ends."""
    chime("run", "start", "toy", *NOWHERE, option, number, code=2)
    assert option in only_line(chime)
    assert chime.json("run", "list")["data"] == []


def test_no_worker_of_its_own(chime):
    """The episodes may be left to workers that somebody else has started."""
    chime("run", "start", "toy", *NOWHERE, "--processes", "0", "--dry-run")


@pytest.mark.parametrize(
    ("option", "number"), [("--hosts", "0"), ("--slots", "0"), ("--slots", "-1"), ("--grace", "-1")]
)
def test_a_worker_of_nothing(chime, option, number):
    """A worker process refuses what it could not work with."""
    chime("worker", "act", "--burst", option, number, code=2)
    assert option in only_line(chime)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--prompt", "dream=x"], "unknown prompt 'dream'"),
        (["--domain", "moon"], "toy has no domain 'moon'"),
        (["--seed-bank", "nobody"], "no run 'nobody'"),
        (["--model", ""], "no model for the planner"),
    ],
)
def test_what_is_wrong_here_is_told_before_the_endpoint_is_asked(chime, words, why):
    """A mistake of one's own needs no endpoint to be found, not even one that is away."""
    chime("run", "start", "toy", *NOWHERE, *words, code=2)
    assert why in chime.err.splitlines()[-1]
    assert chime.json("run", "list")["data"] == []


def test_parts_of_a_protocol_without_parts(chime):
    """A part that there is not is no silent run over everything."""
    chime("run", "start", "toy", *NOWHERE, "--part", "eval", code=2)
    assert only_line(chime) == "chime: --part eval: protocol all has no parts; give --protocol table1 or text"
    chime("run", "start", "toy", *NOWHERE, "--part", "eval", "--protocol", "table1", "--dry-run")


def test_a_task_that_there_is_not(chime):
    """What looks like it is named, or what ids look like."""
    chime("run", "start", "toy", *NOWHERE, "--dry-run", "--task", "shop-exchange-77", code=2)
    assert "toy has no task 'shop-exchange-77'; did you mean shop-exchange-" in only_line(chime)
    chime("run", "start", "toy", *NOWHERE, "--dry-run", "--task", "?", code=2)
    assert "; its 72 are such as " in only_line(chime)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["corpus"], "expected A.B=VALUE"),
        (["=1"], "expected A.B=VALUE"),
        (["a..b=1"], "expected A.B=VALUE"),
        (["a=1", "a.b=2"], "a has a value already"),
        (["a.b=1", "a.b=2"], "--env-option a.b: has a value already"),
        (["a.b=1", "a=2"], "--env-option a: has a value already"),
        (["max_steps=3"], "-s episode.max_steps=N"),
        (["artifacts.t=1"], "is what earlier tasks have left behind"),
        (["a=\udcff"], "--env-option a: is not UTF-8"),
        (["a\udcff=1"], r"--env-option a\udcff: is not UTF-8"),
        ([f"a={'[' * 2000}"], "--env-option a: more than 61 lists and objects inside each other"),
        ([f"a={'[' * 61}{']' * 61}"], "--env-option a: more than 61 lists and objects inside each other"),
        ([f"{'.'.join(62 * 'a')}=text"], "a: more than 61 lists and objects inside each other"),
    ],
)
def test_options_of_an_environment_without_their_form(chime, words, why):
    """Each is refused by name."""
    given = [part for word in words for part in ("--env-option", word)]
    chime("run", "start", "toy", *NOWHERE, "--dry-run", *given, code=2)
    assert why in only_line(chime)


def test_options_of_an_environment(chime, folder):
    """They stand in the header, nested, as JSON or text; the file of the run says the command that gives them again."""

    async def key() -> AnswerKey:
        environment = environments.load("toy", folder / "oracle", oracle=True, environ={})
        try:
            return answer_key(await answers_of(environment), "toy")
        finally:
            await environment.aclose()

    options = [
        "retrieval.corpus=pages of mine.jsonl", "retrieval.top=3", 'language="3"', "solo=true",
        'a={"x.y": 1, "z": 2}', 'b.c={"x=y": 1}', 'd={"": {"e": "\x7f"}}', 'f={"\\n": 1}',
    ]  # fmt: skip
    given = [part for one in options for part in ("--env-option", one)]
    own = folder / "planner.md"
    own.write_text(load_prompts()["planner"].text.replace("# user", "Be brief.\n\n# user"), encoding="utf-8")
    with rehearsal_endpoint(key, RehearsalSettings()) as url:
        chime(
            "run", "start", "toy", "--domain", "shop", "--limit", "1", "--ordering", "canonical", "--run", "a",
            "--in-process", "--frozen", "--model", MODEL, "--base-url", url, "--api-key-env", "", *given,
            "--prompt", f"planner={own}",
        )  # fmt: skip
    chime("log", "export", "a", "-o", "a.jsonl")
    head = json.loads(Path("a.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert head["data"]["config"]["environment"]["options"] == {
        "retrieval": {"corpus": "pages of mine.jsonl", "top": 3}, "language": "3", "solo": True,
        "a": {"x.y": 1, "z": 2}, "b": {"c": {"x=y": 1}}, "d": {"": {"e": "\x7f"}}, "f": {"\n": 1},
    }  # fmt: skip
    exported = chime("run", "export-config", "a")
    assert "\n# not in that command: tasks that were named one by one (--task)\n" in exported
    assert "\n# not in that command: prompts that are not this version's own (--prompt): planner\n" in exported
    command = next(line for line in exported.splitlines() if "chime run start" in line)
    assert shlex.split(command.partition(": ")[2]) == [
        "chime", "run", "start", "toy", "--domain", "shop", "--limit", "1", "--ordering", "canonical", "--frozen",
        "--env-option", 'a={"x.y": 1, "z": 2}', "--env-option", 'b.c={"x=y": 1}',
        "--env-option", r'd={"": {"e": "\u007f"}}', "--env-option", r'f={"\n": 1}',
        "--env-option", 'language="3"', "--env-option", 'retrieval.corpus="pages of mine.jsonl"',
        "--env-option", "retrieval.top=3", "--env-option", "solo=true",
    ]  # fmt: skip
