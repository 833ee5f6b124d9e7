"""What is wrong outside of us: one line on stderr that says what to do, the documented exit code, nothing lost."""

import socket
from pathlib import Path

import anyio
import pytest

from events.codec import content_sha256
from events.ids import RunId
from infra.redis_client import connected
from infra.redis_log import index_key, log_key


def only_line(chime) -> str:
    (line,) = chime.err.splitlines()
    assert line.startswith("chime: ")
    return line


READING = [
    ("run", "list"), ("run", "show", "made"), ("run", "compare", "a", "b"), ("run", "cancel", "made"),
    ("run", "delete", "made"), ("run", "export-config", "made"), ("episode", "list", "made"),
    ("episode", "show", "made", "0"), ("memory", "list", "made"), ("memory", "show", "made", "planning-0"),
    ("memory", "history", "made", "planning-0"), ("memory", "diff", "made", "--at", "0"), ("memory", "export", "made"),
    ("memory", "fork", "made", "--run", "new"), ("log", "list"), ("log", "verify", "made"), ("log", "tail", "made"),
    ("log", "refold", "made"), ("log", "export", "made", "-o", "x.jsonl"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_server_that_does_not_answer(chime, monkeypatch, arguments):
    """Every command that needs the server ends with 3 and one line when it is not there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # a port that nobody listens on
        monkeypatch.setenv("CHIME_REDIS_URL", f"redis://:secret@127.0.0.1:{held.getsockname()[1]}/0")
        body = chime.json(*arguments, code=3)
    assert "does not answer" in only_line(chime)
    assert "secret" not in chime.err
    assert body["error"]["exit_code"] == 3


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_an_empty_folder(chime, folder, monkeypatch, arguments):
    """In an empty folder nothing is started or made by reading; what needs a run says that there is none."""
    monkeypatch.delenv("CHIME_REDIS_URL")
    code = 0 if arguments[1] == "list" and len(arguments) == 2 else 2
    chime(*arguments, code=code)
    assert "none yet" in chime.err or "no runs yet" in chime.err or "no logs yet" in chime.err
    assert [path for path in folder.iterdir() if arguments[1] != "fork"] == []


def test_a_home_that_is_a_file(chime, folder, monkeypatch):
    """A home that cannot be one is refused with what to set."""
    monkeypatch.delenv("CHIME_REDIS_URL")
    (folder / "made").write_text("")
    chime("memory", "fork", "made", "--run", "new", "--home", "made", code=2)
    chime("env", "install", "bfcl", "--home", "made", code=2)
    assert "--home or CHIME_HOME" in only_line(chime)


@pytest.mark.parametrize("command", ["list", "show"])
def test_reading_from_a_home_that_cannot_be_one(chime, folder, monkeypatch, command):
    """What lies in the place of a home is named, rather than taken for a home without runs."""
    monkeypatch.delenv("CHIME_REDIS_URL")
    (folder / "file").write_text("")
    (folder / "link").symlink_to("nowhere")
    for home, why in (("file", "is a file"), ("link", "is a link to nowhere, which is not there")):
        body = chime.json("run", command, "--home", home, code=2)
        assert why in body["error"]["message"]
        assert why in only_line(chime)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize("role", ["models", "roles.gate"])
def test_an_endpoint_whose_address_holds_a_password(chime, more, role):
    """It is refused before anything is begun, for any role, and by a dry run alike."""
    chime("run", "start", "toy", "--model", "m", "--base-url", "http://127.0.0.1:1/v1",
          "-s", f"{role}.base_url=http://me:secret@127.0.0.1:1/v1", *more, code=2)  # fmt: skip
    # Before it a real start says what the server does not promise.
    assert chime.err.splitlines()[-1] == (
        "chime: base_url holds a user or password; put the key into the variable that api_key_env names"
    )
    assert "secret" not in chime.err
    assert chime.json("run", "list")["data"] == []


def test_a_prompt_that_cannot_be_read(chime):
    """The file is named once."""
    from_a_model = ("--model", "m", "--base-url", "http://127.0.0.1:1/v1", "--dry-run")
    chime("run", "start", "toy", "--prompt", "planner=/nope", *from_a_model, code=2)
    assert only_line(chime) == "chime: prompt planner: cannot read /nope: No such file or directory"


def test_a_key_of_another_type(chime, redis_server, redis_prefix):
    """A key of ours that holds something else is named, and left as it is."""

    async def spoil() -> None:
        async with connected(redis_server.url) as redis:
            await redis.set(index_key(redis_prefix, RunId("made")), "x")

    anyio.run(spoil)
    chime("run", "show", "made", code=2)
    assert "holds another type" in only_line(chime)


@pytest.mark.parametrize(
    ("kind", "schema", "data", "code", "message"),
    [
        ("scored", 9, "{}", 2, "has schema 9, this chime reads up to 1"),
        ("dreamt", 1, "{}", 2, "unknown kind 'dreamt' (schema 1)"),
        ("scored", 1, '{"success":"maybe"}', 2, "cannot read made/episode-9/1"),
    ],
)
def test_events_that_cannot_be_read(
    chime, uploaded, made_run, redis_server, redis_prefix, kind, schema, data, code, message
):
    """An event of a newer schema, of an unknown kind, or that is none, is named with its place."""
    made = made_run()
    made.events.pop()
    uploaded(made)
    at = len(made.events) + 1

    async def spoil() -> None:
        async with connected(redis_server.url) as redis:
            fields = {
                "kind": kind, "stream": "episode-9", "version": 1, "schema": schema, "at": made.events[-1].at,
                "cause": "", "attempt": 1, "sha": content_sha256(kind, data.encode()), "data": data,
            }  # fmt: skip
            await redis.xadd(log_key(redis_prefix, RunId("made")), fields, id=f"{at}-0")
            await redis.hset(
                index_key(redis_prefix, RunId("made")),
                mapping={"episode-9": f"1 {kind}", "episode-9/1": at, "@head": at},
            )

    anyio.run(spoil)
    for arguments in (("log", "verify", "made"), ("run", "show", "made"), ("episode", "list", "made")):
        if kind == "dreamt" and arguments[0] == "run":
            continue  # a summary does not look into kinds that it does not count
        chime(*arguments, code=code)
        assert message in only_line(chime)


def test_hostile_text_is_shown_not_obeyed(chime, uploaded, made_run):
    """Text of a model reaches the terminal without control characters, whatever the command."""
    text = "\x1b]0;owned\x07 \x9b31m \u202e reversed [bold]x[/bold], long enough."
    hostile = type(made_run())(run=RunId("hostile"))
    hostile.begin([f"task \x1b[2J {t}" for t in range(2)])
    hostile.episode(0, success=True, label="both", axis=0, text=text)
    hostile.episode(1, success=True, label="both", axis=0)
    uploaded(hostile)
    for arguments in (
        ("memory", "list"), ("memory", "show", "planning-0"), ("memory", "history", "planning-0"), ("episode", "list"),
        ("episode", "show", "0"), ("memory", "diff", "--at", "0"), ("run", "show"), ("log", "tail"),
    ):  # fmt: skip
        out = chime(*arguments)
        assert not any(
            (ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 or char == "\u202e" for char in out
        )
    assert "[bold]x[/bold]" in chime("memory", "show", "planning-0")


def test_output_that_cannot_be_written(chime, uploaded, made_run, folder):
    """-o into a folder that is not there, or onto a folder, is one line; nothing is left behind."""
    uploaded(made_run())
    chime("memory", "export", "made", "-o", "nowhere/bank.jsonl", code=2)
    assert "nowhere" in only_line(chime)
    (folder / "there").mkdir()
    for arguments in (
        ("memory", "export", "made", "-o"), ("run", "export-config", "made", "-o"), ("log", "export", "made", "-o"),
        ("init", "-o"), ("model", "rehearse", "--dump-key"),
    ):  # fmt: skip
        chime(*arguments, "nowhere/x", code=2)
        assert "chime: nowhere/x: there is no folder" in only_line(chime)
    chime("memory", "export", "made", "-o", "there", code=2)
    assert only_line(chime) == "chime: there: this is a folder, not a file"
    chime("init", "-o", "there", code=2)
    assert only_line(chime) == "chime: there is a folder; name a file"
    chime("init", "--force", "-o", "there", code=2)
    assert only_line(chime) == "chime: there is a folder; name a file"
    chime("init", "-o", "/proc/chime.toml", code=2)
    assert only_line(chime).startswith("chime: /proc/chime.toml cannot be written (")
    assert only_line(chime).endswith("; go to a folder you can write, or name a file in one with -o")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["there"]
