"""A Weaviate program is built or fetched once, whole or not at all, and says why where it is not."""

import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from weaviate_servers import ROOT, until

from infra import weaviate_building as module
from infra.weaviate_building import MODULE, Missing, Waiter, archive_name, build, cached, fetch, go_version
from infra.weaviate_server import silent

#: builds a little program in a moment, as `go install` does; writes what it was asked into the file beside it
GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit; fi
here=${0%/*}
echo "$@" >>"$here/asked"
echo "$CGO_ENABLED $GOTOOLCHAIN $GOMODCACHE $GOCACHE $GOTMPDIR $GOBIN" >>"$here/environment"
mkdir -p "$GOBIN" "$GOMODCACHE"
echo "go: downloading example.org/module v1.2.3" >&2
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """An empty tool cache."""
    return tmp_path / "tools"


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A go of the test's on PATH; what it does at the end of `GO`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(end: str, begin: str = GO) -> Path:
        (folder / "go").write_text(begin + end)
        (folder / "go").chmod(0o755)
        return folder

    return put


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file that a go of the test's waits for; it is there at the latest when the test has ended."""
    yield tmp_path / "go-on"
    (tmp_path / "go-on").touch()


MADE = 'echo "#!/bin/sh" >"$GOBIN/weaviate-server"\n'


def left(tools: Path) -> list[str]:
    """What stands in the cache but the lock."""
    return sorted(str(one.relative_to(tools)) for one in tools.rglob("*") if one.name != ".weaviate.lock")


def accepted(path: Path) -> None:
    """Whatever was made is taken."""
    assert path.is_file()
    assert os.access(path, os.X_OK)


def test_it_is_built_as_its_makers_build_it(tools: Path, go: Callable[[str], Path]) -> None:
    """The pinned module, without C, stripped, by this very Go; all caches inside the tool cache, and gone after it."""
    folder = go(MADE)
    lines: list[str] = []
    assert build(tools, Waiter(lines.append), accepted) == cached(tools)
    assert left(tools) == ["weaviate-1.39.0", "weaviate-1.39.0/weaviate-server"]
    asked = (folder / "asked").read_text().strip()
    assert asked == f"install -trimpath -modcacherw -ldflags -s -w {MODULE}"
    cgo, toolchain, *folders = (folder / "environment").read_text().split()
    assert (cgo, toolchain) == ("0", "local")
    assert all(one.startswith(f"{tools}/") for one in folders)
    assert len(lines) == 2
    assert "go 1.26.8" in lines[0]
    assert build(tools, Waiter(lines.append), accepted) == cached(tools)
    assert (folder / "asked").read_text().count("install") == 1


def test_a_build_that_fails_leaves_nothing(tools: Path, go: Callable[[str], Path]) -> None:
    """Its last line says why; what it has downloaded is removed."""
    go('touch "$GOMODCACHE/x"\necho "go: example.org/module@v1.2.3: dial tcp: no route" >&2\nexit 1\n')
    with pytest.raises(Missing, match=r"^go: example.org/module@v1.2.3: dial tcp: no route$"):
        build(tools, Waiter(silent), accepted)
    assert left(tools) == []
    go("kill -9 $$\n")
    with pytest.raises(Missing, match="it ends with -9"):
        build(tools, Waiter(silent), accepted)
    assert left(tools) == []


def test_a_program_that_is_refused_is_not_kept(tools: Path, go: Callable[[str], Path]) -> None:
    """What was built is looked at before it is put in its place."""
    go(MADE)

    def refused(path: Path) -> None:
        raise Missing(f"{path.name} is not what was asked for")

    with pytest.raises(Missing, match="is not what was asked for"):
        build(tools, Waiter(silent), refused)
    assert left(tools) == []


def test_an_interrupted_build_leaves_nothing(
    tools: Path, go: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends go and all that it has started."""
    folder = go('echo $$ >"${0%/*}/pid"\nsleep 1000 &\nwait\n')
    monkeypatch.setattr(module, "_TELL_S", 0.05)

    def interrupt(line: str) -> None:
        if line.startswith("still") and (folder / "pid").exists():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    # Whoever runs the tests in the background of a shell lets them ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            build(tools, Waiter(interrupt), accepted)
    finally:
        signal.signal(signal.SIGINT, before)
    group = int((folder / "pid").read_text())
    until(lambda: not _group_lives(group))
    assert left(tools) == []


def _group_lives(group: int) -> bool:
    """Whether a process of the group runs; what is left of one that has ended does not count."""
    for one in Path("/proc").iterdir():
        try:
            fields = (one / "stat").read_text().rsplit(")", 1)[1].split() if one.name.isdigit() else ["Z"]
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[2]) == group:
            return True
    return False


BUILDER = """
import sys
from pathlib import Path
from infra.weaviate_building import Waiter, build
print(build(Path(sys.argv[1]), Waiter(lambda line: print(line, flush=True)), lambda path: None), flush=True)
"""


def builder(tools: Path) -> "subprocess.Popen[str]":
    """A process that builds."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tools)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=ROOT,
    )  # fmt: skip


def test_two_that_build_at_once_build_once(tools: Path, go: Callable[[str], Path], gate: Path) -> None:
    """The second one says that it waits, and takes what the first has made."""
    folder = go(f'while [ ! -e "{gate}" ]; do sleep 0.05; done\n{MADE}')
    both = [builder(tools), builder(tools)]
    until((folder / "asked").exists)
    said = [one.stdout.readline() for one in both if one.stdout is not None]
    assert sorted(line.split()[0] for line in said) == ["building", "waiting"]
    gate.touch()
    ends = [one.communicate(timeout=120)[0].splitlines()[-1] for one in both]
    assert ends == [str(cached(tools))] * 2
    assert (folder / "asked").read_text().count("install") == 1


def test_a_build_whose_starter_was_killed_is_gone_on_with(
    tools: Path, go: Callable[[str], Path], gate: Path, tmp_path: Path
) -> None:
    """Go is still at it: the next one waits for it rather than run beside it, and uses what it has fetched."""
    go(
        f'[ -e "$GOMODCACHE/fetched" ] && echo again >>"{tmp_path}/again"\ntouch "$GOMODCACHE/fetched"\n'
        f'while [ ! -e "{gate}" ]; do sleep 0.05; done\n{MADE}'
    )
    killed = builder(tools)
    until((tools / ".weaviate-1.39.0" / "gomodcache" / "fetched").exists)
    killed.kill()
    killed.communicate()
    second = builder(tools)
    assert second.stdout is not None
    assert second.stdout.readline().startswith("waiting")
    gate.touch()
    assert second.communicate(timeout=120)[0].splitlines()[-1] == str(cached(tools))
    assert (tmp_path / "again").read_text() == "again\n"
    assert left(tools) == ["weaviate-1.39.0", "weaviate-1.39.0/weaviate-server"]


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo go1.25.9", "go1.25.9 is older than go1.26"),
        ("echo hello", "does not say its version"),
        ("echo 'go: cannot find GOROOT' >&2; exit 2", r"does not say its version \(go: cannot find GOROOT\)"),
    ],
)
def test_a_go_that_will_not_do(script: str, told: str, tools: Path, go: Callable[..., Path]) -> None:
    """Too old, or not working: nothing is begun."""
    go(f"{script}\n", "#!/bin/sh\n")
    with pytest.raises(Missing, match=told):
        build(tools, Waiter(silent), accepted)
    assert not tools.exists()


def test_newer_ones_do(go: Callable[..., Path]) -> None:
    """By number, not by text."""
    for version in ("go1.26", "go1.100.1", "go2.0rc1"):
        go(f"echo {version}\n", "#!/bin/sh\n")
        assert go_version()[1] == version.removeprefix("go")


def test_no_room_is_told_before_it_begins(
    tools: Path, go: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gigabytes are needed for a while."""
    folder = go(MADE)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10 << 30, 9 << 30, 1 << 30))  # type: ignore[attr-defined]
    with pytest.raises(Missing, match=r"has 1024 MiB free, 6144 are needed"):
        build(tools, Waiter(silent), accepted)
    assert not (folder / "asked").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, go: Callable[[str], Path]) -> None:
    """A file stands in its way."""
    go(MADE)
    (tmp_path / "tools").touch()
    with pytest.raises(Missing, match=r"tools cannot be written \(File exists\)"):
        build(tmp_path / "tools", Waiter(silent), accepted)


@pytest.fixture
def releases(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A server of releases: its folder and its address."""
    folder = tmp_path / "releases"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def packed(names: dict[str, bytes], archive: Path) -> bytes:
    """An archive as it is released."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for name, content in names.items():
                zipped.writestr(name, content)
    else:
        with tarfile.open(archive, "w:gz") as tape:
            for name, content in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tape.addfile(member, io.BytesIO(content))
    return archive.read_bytes()


PROGRAM = b"#!/bin/sh\necho weaviate\n"


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_a_release_is_fetched(
    system: str, tools: Path, releases: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive for this machine, checked; of all that is in it the program alone."""
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    folder, url = releases
    name = archive_name()
    assert name == {"Linux": "weaviate-v1.39.0-linux-arm64.tar.gz", "Darwin": "weaviate-v1.39.0-darwin-all.zip"}[system]
    body = packed({"README.md": b"read", "../../evil": b"x", "weaviate": PROGRAM}, folder / name)
    (folder / f"{name}.sha256").write_text(hashlib.sha256(body).hexdigest() + "\n")
    assert fetch(tools, Waiter(silent), accepted, url) == cached(tools)
    assert cached(tools).read_bytes() == PROGRAM
    assert left(tools) == ["weaviate-1.39.0", "weaviate-1.39.0/weaviate-server"]


@pytest.mark.parametrize(
    ("content", "digest", "told"),
    [
        ({"weaviate": PROGRAM}, "0" * 64, "is not what its SHA-256 says"),
        ({"weaviate": PROGRAM}, "<html>", "holds no SHA-256"),
        ({"weaviate": PROGRAM}, "", "holds no SHA-256"),
        ({"weaviate": PROGRAM}, None, "sha256 answers 404"),
        ({"other": PROGRAM}, "right", "holds no program"),
        (None, "right", "cannot be unpacked"),
    ],
)
def test_a_release_that_is_not_right(
    content: dict[str, bytes] | None, digest: str | None, told: str, tools: Path, releases: tuple[Path, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Another content, no checksum, no program, no archive: one line, and nothing is left."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    folder, url = releases
    name = archive_name()
    body = packed(content, folder / name) if content is not None else b"\x1f\x8b no archive"
    (folder / name).write_bytes(body)
    if digest is not None:
        text = hashlib.sha256(body).hexdigest() if digest == "right" else digest
        (folder / f"{name}.sha256").write_text(f"{text}\n")
    with pytest.raises(Missing, match=told) as caught:
        fetch(tools, Waiter(silent), accepted, url)
    assert "\n" not in str(caught.value)
    assert left(tools) == []


def test_releases_that_cannot_be_reached(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there; and a machine for which nothing is released."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(Missing, match=r"http://127.0.0.1:9: .*refused"):
        fetch(tools, Waiter(silent), accepted, "http://127.0.0.1:9")
    assert left(tools) == []
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(Missing, match="there is none for linux on riscv64"):
        fetch(tools, Waiter(silent), accepted)
