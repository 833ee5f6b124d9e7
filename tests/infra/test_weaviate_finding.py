"""The ways to a Weaviate program: in order, each with its reason where it does not lead there."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from events.errors import Unreachable
from infra import weaviate_building, weaviate_finding
from infra.weaviate_building import Waiter, cached
from infra.weaviate_finding import IMAGE, programs, provided, version_by_trial, ways
from infra.weaviate_process import VERSION
from infra.weaviate_server import Start, keep, silent, state_of

#: a program that is ready at once and says that it is another version; it counts its starts in the file `starts`
OTHER = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
with open({starts!r}, "a") as file:
    file.write(os.environ["PERSISTENCE_DATA_PATH"] + "\\n")
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({{"version": {version!r}}}).encode())
    def log_message(self, *args):
        pass
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there, a shell, and what scripts need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "sleep", "cat", "cp", "mkdir", "kill"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(weaviate_finding, "fetch", _unreachable)
    for name in ("PROBE_S", "_ENGINE_S"):  # a busy machine is no failure
        monkeypatch.setattr(weaviate_finding, name, 120.0)
    return folder


def _unreachable(*_: object) -> Path:
    raise weaviate_building.Missing("the network is unreachable")


def put(folder: Path, name: str, text: str) -> Path:
    """A script."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def alive(name: str) -> list[int]:
    """Processes whose command line holds `name`."""
    found: list[int] = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit() and int(one.name) != os.getpid():
            try:
                if name in (one / "cmdline").read_text():
                    found.append(int(one.name))
            except OSError:
                continue
    return found


def test_the_machine_s_own_comes_first(tmp_path: Path, bare: Path, weaviate_tools: Path) -> None:
    """A program on PATH of the right version is taken before the cache; it is asked once, then known by its file."""
    (bare / "weaviate-server").symlink_to(cached(weaviate_tools))
    tools = tmp_path / "tools"
    cached(tools).parent.mkdir(parents=True)
    put(cached(tools).parent, "weaviate-server", "#!/bin/sh\nexit 1\n")
    lines: list[str] = []
    first = provided(tools, Waiter(lines.append), [])
    assert first is not None
    assert (first.way, first.path, len(lines)) == ("PATH", str(bare / "weaviate-server"), 1)
    assert provided(tools, Waiter(lines.append), []) == first
    assert len(lines) == 1
    assert [way.name for way in ways(tools) if way.open][:2] == ["PATH", "tool cache"]


def test_another_version_is_named_and_passed_over(tmp_path: Path, bare: Path, weaviate_tools: Path) -> None:
    """It never sees the home's data: it is asked on a folder of its own, once for each state of its file."""
    starts = tmp_path / "starts"
    program = OTHER.format(python=sys.executable, starts=str(starts), version="1.36.5")
    path = put(bare, "weaviate-server", program)
    home = tmp_path / "home"
    home.mkdir()
    (home / "tools").symlink_to(weaviate_tools)
    misses: list[str] = []
    own = tmp_path / "tools"
    shutil.copytree(weaviate_tools / f"weaviate-{VERSION}", own / f"weaviate-{VERSION}", copy_function=os.link)
    found = provided(own, Waiter(silent), misses)
    assert found is not None
    assert (found.way, misses) == ("tool cache", [f"PATH: {path} is version 1.36.5, not {VERSION}"])
    assert provided(own, Waiter(silent), []) == found
    places = starts.read_text().split()
    assert len(places) == 1
    assert not places[0].startswith(str(home))
    assert not Path(places[0]).exists()
    [way] = [way for way in ways(own) if way.name == "PATH"]
    assert (way.open, way.detail) == (False, f"{path} is version 1.36.5, not {VERSION}")
    assert alive(str(path)) == []

    put(bare, "weaviate-server", OTHER.format(python=sys.executable, starts=str(starts), version="1.38.12"))
    provided(own, Waiter(silent), misses)
    assert misses[-1] == f"PATH: {path} is version 1.38.12, not {VERSION}"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("sleep 1000", "is not ready after 1 s"),
        ("echo 'flag provided but not defined: -host' >&2; exit 2", "ends at once: flag provided but not defined"),
        ('echo \'{"level":"fatal","msg":"no luck","error":"bad moon"}\'; exit 1', "ends at once: no luck: bad moon"),
        ("exit 0", "ends at once"),
    ],
)
def test_a_program_that_is_no_server(
    script: str, told: str, tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ended, told in one line, and the next way is tried; nothing of it is left."""
    if script.startswith("sleep"):
        monkeypatch.setattr(weaviate_finding, "PROBE_S", 1.0)
    path = put(bare, "weaviate-server", f"#!/bin/sh\n{script}\n")
    misses: list[str] = []
    assert provided(tmp_path / "tools", Waiter(silent), misses) is None
    assert misses[0].startswith(f"PATH: {path} {told}")
    assert [line.split(":")[0] for line in misses] == ["PATH", "tool cache", "go install", "release", "docker"]
    assert alive(str(path)) == []
    assert not list((tmp_path / "tools").glob("*"))


def test_without_any_way_each_is_named_in_one_line(tmp_path: Path, bare: Path) -> None:
    """What is in the way of each, and what a user can do; nothing of a server is left in the home."""
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(Unreachable) as caught:
        keep(home, Start())
    told = str(caught.value)
    assert "\n" not in told
    for part in (
        f"no Weaviate {VERSION} to be had", "PATH: no weaviate-server on PATH", "tool cache: nothing at",
        "go install: no go on PATH", "release: the network is unreachable", "docker: no docker on PATH",
        "CHIME_WEAVIATE_URL", "Go 1.26", "Docker engine",
    ):  # fmt: skip
        assert part in told
    assert not (home / "weaviate" / "server.json").exists()
    assert state_of(home) == "stopped"


def test_a_cached_program_that_does_not_run_gives_way(tmp_path: Path, bare: Path) -> None:
    """It was cut short, or is for another machine: each way is named, and how to have it made again."""
    home = tmp_path / "home"
    cached(home / "tools").parent.mkdir(parents=True)
    cached(home / "tools").write_bytes(b"\x7fELF nonsense")
    cached(home / "tools").chmod(0o755)
    with pytest.raises(Unreachable, match=r"tool cache does not start: .*; remove it to have it made again") as caught:
        keep(home, Start())
    assert "\n" not in str(caught.value)
    cached(home / "tools").chmod(0o644)
    misses: list[str] = []
    list(programs(home / "tools", Waiter(silent), misses))
    assert misses[1] == f"tool cache: {cached(home / 'tools')} is not executable"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 1", "docker: no engine runs"),
        ("echo", "docker: no engine runs"),
        ('[ "$1" = info ] && echo 28.2 && exit\n[ "$1" = pull ] && echo "no such host" >&2\nexit 1',
         "docker: pull fails: no such host"),
    ],
)  # fmt: skip
def test_a_container_engine_that_is_not_there(script: str, told: str, tmp_path: Path, bare: Path) -> None:
    """Its client is, its engine or the image is not."""
    put(bare, "docker", f"#!/bin/sh\n{script}\n")
    misses: list[str] = []
    assert provided(tmp_path / "tools", Waiter(silent), misses) is None
    assert misses[-1] == told


def test_an_engine_that_never_answers_is_given_up(tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a socket that nobody serves."""
    monkeypatch.setattr(weaviate_finding, "_ENGINE_S", 0.5)
    put(bare, "docker", "#!/bin/sh\nexec sleep 1000\n")
    [way] = [way for way in ways(tmp_path / "tools") if way.name == "docker"]
    assert (way.open, "does not say" in way.detail) == (False, True)


def test_the_outlook_costs_nothing(tmp_path: Path, bare: Path) -> None:
    """All ways in order with what each would do; nothing is started, built, fetched or written for it."""
    put(bare, "weaviate-server", f"#!/bin/sh\ntouch {tmp_path}/was-started\n")
    put(bare, "go", '#!/bin/sh\n[ "$1" = env ] && echo go1.26.3\n')
    put(bare, "docker", '#!/bin/sh\n[ "$1" = info ] && echo 28.2\n')
    found = ways(tmp_path / "tools")
    assert [way.name for way in found] == ["PATH", "tool cache", "go install", "release", "docker"]
    details = {way.name: way.detail for way in found if way.open}
    assert details["PATH"].endswith("to be asked for its version")
    assert details["go install"].startswith("go 1.26.3 builds it")
    assert f"weaviate-v{VERSION}-" in details["release"]
    assert details["docker"] == f"runs {IMAGE}"
    assert not (tmp_path / "tools").exists()
    assert not (tmp_path / "was-started").exists()


def test_a_trial_leaves_nothing(weaviate_tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program is asked for its version in a folder of its own, and ended."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(weaviate_finding, "PROBE_S", 120.0)
    link = tmp_path / "weaviate-on-trial"
    link.symlink_to(cached(weaviate_tools))
    assert version_by_trial(link, Waiter(silent)) == VERSION
    assert [one.name for one in tmp_path.iterdir()] == ["weaviate-on-trial"]
    assert alive(str(link)) == []
