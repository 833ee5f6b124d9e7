import errno
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from events.errors import BadInput, BudgetSpent, ChimeError, FoldMismatch, Mismatch, Unreachable
from runtime.errors import RunGone
from workers.__main__ import chime, explained, main
from workers.commands import TREE, Noun, Verb
from workers.commands.lazy import LazyGroup
from workers.invocation import chime_command

PROJECT = Path(__file__).parents[2]

VERBS = [
    (path, verb)
    for name, entry in TREE.items()
    for path, verb in (
        [(name, entry)] if isinstance(entry, Verb) else [(f"{name} {v}", one) for v, one in entry.verbs.items()]
    )
]


def run(*arguments, cwd, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    return subprocess.run(
        [sys.executable, "-m", "workers", *arguments],
        cwd=cwd, env={**clean, "PYTHONPATH": str(PROJECT), **environment}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(("path", "verb"), VERBS, ids=[path for path, _ in VERBS])
def test_the_table_matches_the_commands(path, verb):
    """Every command of the table exists under its name, with the help that the table shows, and knows --json."""
    command = getattr(import_module(verb.module), verb.attribute)
    assert isinstance(command, click.Command)
    assert command.name == path.split()[-1]
    assert command.get_short_help_str(limit=200) == verb.help
    assert {"--json", "--debug", "--set"} <= {option for one in command.params for option in one.opts}


def test_helps_are_sentences_that_fit():
    """Each line of help ends in a full stop and fits beside the names."""
    helps = [entry.help for entry in TREE.values()] + [verb.help for _, verb in VERBS]
    assert [one for one in helps if not one.endswith(".") or len(one) > 70] == []


def test_help_imports_no_vendor(tmp_path):
    """`chime --help` and a noun's help import neither openai, weaviate, numpy, torch nor redis."""
    code = (
        "import sys; from workers.__main__ import main; codes = [main(['--help']), main(['memory', '--help'])]; "
        "vendors = ('openai', 'weaviate', 'numpy', 'torch', 'redis', 'rq', 'structlog', 'rich', 'msgspec');"
        "print(codes, [m for m in vendors if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[0, 0] []", done.stderr


def test_listing_runs_loads_what_it_uses():
    """`chime run list` costs its imports: redis is among them, but no numpy, structlog, rq, model or bank server."""
    code = (
        "import sys, workers.commands.run; vendors = ('numpy', 'structlog', 'rich.console', 'rq', 'openai', 'weaviate',"
        "'httpx', 'starlette', 'uvicorn', 'infra.weaviate_server');"
        "print([m for m in vendors if m in sys.modules], 'redis' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "[] True", done.stderr


def test_a_coordinator_loads_no_model():
    """`chime coordinator` asks no model, and does not pay for the SDK; a worker has it before its first job."""
    code = (
        "import sys, workers.commands.coordinator; before = 'openai' in sys.modules;"
        "import workers.commands.worker; print(before, 'openai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "False True", done.stderr


def test_one_thread_for_linear_algebra(tmp_path):
    """The thread counts are set before a command can import numpy; a value of the user's stays."""
    code = "import os; from workers.__main__ import main; main(['--version']); print(os.environ['OMP_NUM_THREADS'])"
    base = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for environment, threads in ((base, "1"), ({**base, "OMP_NUM_THREADS": "2"}, "2")):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True
        )
        assert done.stdout.split()[-1] == threads


def test_every_noun_alone_does_something():
    """Its default is one of its commands, and `list` where it has one."""
    for entry in TREE.values():
        if isinstance(entry, Noun):
            assert entry.default in entry.verbs
            assert "list" not in entry.verbs or entry.default == "list"


def test_bare_noun_is_list():
    """A noun alone, or with options only, means its default verb."""
    entry = TREE["config"]
    assert isinstance(entry, Noun)
    group = chime.get_command(click.Context(chime), "config")
    assert isinstance(group, LazyGroup)
    for arguments in ([], ["--json"], ["show"]):
        context = click.Context(group)
        group.parse_args(context, list(arguments))
        assert context._protected_args == ["show"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadInput("x"), 2),
        (Unreachable("x"), 3),
        (RunGone("x"), 3),
        (Mismatch("x"), 4),
        (FoldMismatch("here", "digest", 1, 2), 4),
        (BudgetSpent("x"), 5),
        (ChimeError("x"), 1),
        (click.UsageError("x"), 2),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (OSError(errno.ENOSPC, "full", "f"), 3),
        (OSError(errno.EROFS, "ro", "f"), 2),
        (PermissionError(errno.EACCES, "no", "f"), 2),
        (FileNotFoundError(errno.ENOENT, "no", "f"), 2),
        (RuntimeError("boom"), 1),
        (ExceptionGroup("g", [Unreachable("x")]), 3),
        (ExceptionGroup("g", [Unreachable("x"), ExceptionGroup("h", [Mismatch("y")])]), 4),
        (BaseExceptionGroup("g", [KeyboardInterrupt(), Unreachable("x")]), 3),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), 130),
        (ExceptionGroup("g", [Mismatch("x"), RuntimeError("a bug")]), 1),
    ],
)
def test_exit_codes(error, code):
    """Each family of errors has one exit code; of several in a group the gravest is named."""
    kind, message, got = explained(error)
    assert got == code
    assert kind
    assert "\n" not in message


def test_a_bug_says_how_to_see_more():
    """An error nobody foresaw is one line that names --debug."""
    assert explained(RuntimeError("boom"))[1] == (
        "unexpected RuntimeError: boom; run it again with --debug for the traceback"
    )


def test_unknown_commands_and_options(folder, capsys):
    """A mistyped command or option is one line on stderr that names the nearest one, exit code 2."""
    assert main(["rnu"]) == 2
    assert main(["config", "shwo"]) == 2
    assert main(["config", "show", "--orgin"]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0] == "chime: no command 'rnu'; did you mean run? (see chime --help)"
    assert lines[1].startswith("chime: no command 'config shwo'; did you mean show?")
    assert "--origin" in lines[2]
    assert len(lines) == 3
    assert captured.out == ""


def test_errors_with_json_are_an_envelope(folder, capsys):
    """With --json an error is on stdout too: kind, message and exit code."""
    (folder / "chime.toml").write_text("[policy]\nbeta = 2\n")
    assert main(["config", "show", "--json"]) == 2
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert body["schema"] == 1
    assert body["error"]["exit_code"] == 2
    assert body["error"]["kind"] == "BadInput"
    assert captured.err == f"chime: {body['error']['message']}\n"


def test_one_envelope_whatever_follows_it(folder, capsys, monkeypatch):
    """An error after the envelope was told goes into that envelope: stdout stays one JSON value."""

    @chime_command("show")
    def told_then_failed(invocation):
        invocation.output.data({"episodes": 3})
        raise Unreachable("the server went away")

    monkeypatch.setattr("workers.commands.config.show", told_then_failed)
    assert main(["config", "show", "--json"]) == 3
    body = json.loads(capsys.readouterr().out)
    assert body["data"] == {"episodes": 3}
    assert body["error"] == {"kind": "Unreachable", "message": "the server went away", "exit_code": 3}


COUNTING = """
class Counting:
    def describe(self):
        return {"env": "counting", "version": "1", "domains": {"numbers": 1}}

    def tasks(self, domain=None, split=None):
        return [{"task_id": "near", "domain": "numbers"}]

    def reset(self, episode_id, domain, task_id, seed, options):
        return {"system": "", "messages": [{"role": "user", "content": "Count."}], "tools": []}

    def step(self, action):
        return {"messages": [], "done": True}

    def evaluate(self):
        return {"reward": 1.0, "success": True}
"""


def test_an_environment_of_the_users_is_found_in_the_working_folder(tmp_path):
    """The installed command finds `module:Class` in the folder where it is called, and nothing there hides ours."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "broken.py").write_text("class Broken(\n")
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "__init__.py").write_text("raise SystemExit('not ours')")
    start = "import sys; from workers.__main__ import main; sys.exit(main())"  # what the script `chime` does

    def chime_script(name):
        arguments = ["run", "start", name, "--dry-run", "--json", "--model", "m", "--base-url", "http://127.0.0.1:1/v1"]
        return subprocess.run(
            [sys.executable, "-P", "-c", start, *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(PROJECT), "CHIME_HOME": str(tmp_path / "home")},
            capture_output=True, text=True,
        )  # fmt: skip

    done = chime_script("counting:Counting")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["expected"]["episodes"] == 1
    broken = chime_script("broken:Broken")
    assert broken.returncode == 2
    assert broken.stderr.startswith("chime: environment 'broken:Broken': SyntaxError")


def test_tracebacks_only_with_debug(folder, capsys):
    """A traceback appears with --debug and not otherwise."""
    (folder / "chime.toml").write_text("x\n")
    main(["config", "show"])
    assert "Traceback" not in capsys.readouterr().err
    main(["config", "show", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_tracebacks_by_variable(folder, capsys, monkeypatch):
    """CHIME_DEBUG is --debug for every command, unless it says no."""
    (folder / "chime.toml").write_text("x\n")
    for value, shown in (("1", True), ("", False), ("0", False), ("false", False)):
        monkeypatch.setenv("CHIME_DEBUG", value)
        main(["config", "show"])
        assert ("Traceback" in capsys.readouterr().err) is shown


def test_one_form_of_hints(folder, capsys):
    """A mistyped option is answered in the words in which a mistyped command is."""
    main(["run", "list", "--jsn"])
    assert capsys.readouterr().err.startswith("chime: no such option '--jsn'; did you mean --json? (see")
    main(["config", "show", "--orign"])
    assert "; did you mean --origin? (see" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["show", "--json"], ["show"], ["-s", "z=1", "--json"]])
def test_a_disk_that_is_full(folder, arguments):
    """A stdout that takes nothing more is one line and an exit code."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "workers", "config", *arguments],
            env={**os.environ, "PYTHONPATH": str(PROJECT)}, stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == (2 if "-s" in arguments else 3)
    (line,) = done.stderr.splitlines()
    assert line.startswith("chime: ")


def test_standard_streams_that_are_closed(folder):
    """Whoever closes stdout or stderr gets the exit code and nothing else."""
    for redirection, arguments, code in ((">&-", "", 0), ("2>&-", "-s z=1", 2), (">&- 2>&-", "-s z=1 --json", 2)):
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {sys.executable} -m workers config show {arguments} {redirection}"],
            env={**os.environ, "PYTHONPATH": str(PROJECT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (code, "")


def test_hostile_text_in_an_error_is_escaped(folder, capsys):
    """Control characters in what a user or file gave do not reach the terminal."""
    main(["config", "show", "-s", "policy.\x1b[31m=1"])
    assert "\x1b" not in capsys.readouterr().err


def test_config_show_and_diff(folder, capsys):
    """`config show --origin` says where values come from; `--preset paper --diff` what Table 7 changes."""
    (folder / "chime.toml").write_text("[policy]\nbeta = 0.3\n")
    assert main(["config", "--origin"]) == 0
    out = capsys.readouterr().out
    assert "file chime.toml:2" in out
    assert main(["config", "show", "--preset", "paper", "--diff", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    assert {row["setting"]: row["value"] for row in rows if not row["setting"].startswith("embedder.")} == {
        "models.max_tokens": 16384,
        "models.timeout_s": 2400,
        "models.retries": 15,
        "models.retry_base_s": 50,
        "policy.beta": "0.3",
        "run.protocol": "table1",
    }
    assert main(["config", "show", "--preset", "paper", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["data"]
    origins = {row["setting"]: row["origin"] for row in rows}
    assert (origins["embedder.model"], origins["policy.theta_merge"]) == ("preset paper", "profile qwen3")


def test_init_writes_once(folder, capsys):
    """`init` writes chime.toml, refuses to replace it, and replaces it with --force."""
    assert main(["init"]) == 0
    before = (folder / "chime.toml").read_text()
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    (folder / "chime.toml").write_text("# other\n")
    assert main(["init", "--force"]) == 0
    assert (folder / "chime.toml").read_text() == before
    assert not (folder / ".chime").exists()


def test_as_a_module(tmp_path):
    """`python -m workers` is the command line, in an empty folder and without a home being made."""
    done = run("config", "show", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_is_no_error(tmp_path):
    """A pipe that nobody reads ends the command quietly, with the code of a program that SIGPIPE ended."""
    reading, writing = os.pipe()
    os.close(reading)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CHIME_")}
    done = subprocess.run(
        [sys.executable, "-m", "workers", "config", "show", "--json"],
        cwd=tmp_path, env={**clean, "PYTHONPATH": str(PROJECT)}, stdout=writing, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_version(capsys):
    """--version prints one line."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("chime 0.")
