"""infra/compose.yaml without an engine: its shape, its secrets, its ports; and its commands, which are run."""

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis
from deployment_files import (
    INFRA,
    ROOT,
    assert_command,
    assert_secured,
    assert_settings,
    documents,
    interpolated,
    is_pinned,
    references,
)

from infra.redis_client import connected, durability
from infra.redis_server import wheel_binary
from infra.weaviate_finding import programs
from infra.weaviate_process import VERSION, Ports, free_ports
from workers.commands.worker import worker

Service = dict[str, Any]

#: of the Compose specification, what this file uses: name -> type of the value
_SERVICE: Mapping[str, type | tuple[type, ...]] = {
    "build": dict,
    "cap_drop": list,
    "command": list,
    "depends_on": dict,
    "deploy": dict,
    "environment": dict,
    "healthcheck": dict,
    "image": str,
    "init": bool,
    "logging": dict,
    "networks": list,
    "ports": list,
    "profiles": list,
    "read_only": bool,
    "restart": str,
    "security_opt": list,
    "stop_grace_period": str,
    "tmpfs": list,
    "ulimits": dict,
    "user": str,
    "volumes": list,
}
_TOP = {"name": str, "services": dict, "networks": dict, "volumes": dict}
_HEALTH = {"test", "interval", "timeout", "start_period", "retries", "disable"}
_SECONDS = re.compile(r"(\d+)s")

VARIABLES = {
    "VALKEY_PASSWORD": "c0ffee" * 6,
    "WEAVIATE_API_KEY": "5ec2e7" * 6,
    "WEAVIATE_CLUSTER_PASSWORD": "0a11ce" * 6,
}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file."""
    (found,) = documents(INFRA / "compose.yaml")
    return found


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Service]:
    """Its services by name."""
    found: dict[str, Service] = compose["services"]
    return found


def environment(service: Service) -> dict[str, str]:
    """The variables of a service as it gets them; those that are handed on from outside are left out."""
    return {name: interpolated(value, VARIABLES) for name, value in service["environment"].items() if value is not None}


def ours(services: dict[str, Service]) -> dict[str, Service]:
    """The services that run our image."""
    return {name: one for name, one in services.items() if one["image"].startswith("chime-runtime:")}


def test_every_key_is_one_of_compose(compose: dict[str, Any], services: dict[str, Service]) -> None:
    """A mistyped key, which Compose would refuse or ignore, and a value of another type are found here."""
    assert {name for name in compose if not name.startswith("x-")} == set(_TOP)
    for name, kind in _TOP.items():
        assert isinstance(compose[name], kind)
    for name, service in services.items():
        for key, value in service.items():
            assert isinstance(value, _SERVICE[key]), f"{name}.{key}"
        assert set(service["healthcheck"]) <= _HEALTH
        assert set(service["deploy"]) <= {"replicas", "resources"}
        assert set(service["deploy"]["resources"]) <= {"limits", "reservations"}


def test_what_a_service_names_is_there(compose: dict[str, Any], services: dict[str, Service]) -> None:
    """Networks, volumes and the services it waits for are declared; those it waits for say whether they are well."""
    for service in services.values():
        assert set(service["networks"]) <= set(compose["networks"])
        assert {one.split(":")[0] for one in service["volumes"]} <= set(compose["volumes"])
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "test" in services[other]["healthcheck"]
    used = {one for service in services.values() for one in service["networks"]}
    assert used == set(compose["networks"])


def test_the_parts_are_there(services: dict[str, Service]) -> None:
    """Log, banks, coordinator and both kinds of worker; images of whole versions, ours built from our Dockerfile."""
    assert {"valkey", "weaviate", "coordinator", "act", "diagnose"} <= set(services)
    assert all(is_pinned(service["image"]) for service in services.values())
    assert services["weaviate"]["image"].endswith("/weaviate:1.39.0")
    for service in ours(services).values():
        context = (INFRA / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).is_file()


def test_no_secret_has_a_default(compose: dict[str, Any], services: dict[str, Service]) -> None:
    """Without the three secrets Compose refuses to start, and the file itself holds none."""
    assert {(name, how) for name, how in references(compose)} == {(name, "?") for name in VARIABLES}
    for service in services.values():
        for name, value in service["environment"].items():
            if re.search(r"PASSWORD|KEY$|KEYS$|SECRET|TOKEN", name):
                assert value is None or next(references(value))[1] == "?", name
    password = environment(services["act"])["CHIME_REDIS_URL"]
    assert f":{VARIABLES['VALKEY_PASSWORD']}@valkey:" in password


def test_only_clients_ports_are_published_and_only_here(services: dict[str, Service]) -> None:
    """Never on all interfaces, never the ports of Weaviate's cluster; what runs agents' tools publishes nothing."""
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {
        "valkey": ["127.0.0.1:6379:6379"],
        "weaviate": ["127.0.0.1:8080:8080", "127.0.0.1:50051:50051"],
    }
    assert all("outside" not in services[name]["networks"] for name in ("valkey", "weaviate"))


def test_nobody_may_more_than_he_needs(services: dict[str, Service]) -> None:
    """No capability, no new privilege, limits of processor, memory and processes for each."""
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory", "pids"}, name
        assert float(limits["cpus"]) > 0
        assert re.fullmatch(r"\d+[mg]", limits["memory"]), name
    for service in ours(services).values():
        assert service["read_only"]
        assert "user" not in service  # that of the image, which is not root


def test_every_part_says_whether_it_is_well(services: dict[str, Service]) -> None:
    """A check with limits of its own for each part that stays; the one-off command has none."""
    for name, service in services.items():
        check = service["healthcheck"]
        if service.get("profiles"):
            assert check == {"disable": True}
            continue
        assert service["restart"] == "unless-stopped", name
        assert set(check) == _HEALTH - {"disable"}, name
        assert check["test"][0] in ("CMD", "CMD-SHELL")


def test_every_command_exists_with_its_options(services: dict[str, Service]) -> None:
    """What our services run, and ask in their health checks, the command line takes as it stands."""
    for service in ours(services).values():
        if service.get("profiles"):
            continue
        assert_command(service["command"])
        kind, *words = service["healthcheck"]["test"]
        if kind == "CMD":
            assert words[0] == "chime"
            assert_command(words[1:])
        else:
            subprocess.run(["sh", "-n", "-c", words[0].replace("$$", "$")], check=True)
            assert_command(words[0].split("|")[0].split()[1:])


def test_a_worker_has_longer_than_its_own_grace(services: dict[str, Service]) -> None:
    """Who ends a worker earlier than it ends by itself loses what it was about to hand back."""
    grace = next(one for one in worker.params if one.name == "grace").default
    for service in ours(services).values():
        found = _SECONDS.fullmatch(service["stop_grace_period"])
        assert found is not None
        assert int(found[1]) > grace


def test_every_variable_is_read_by_somebody(services: dict[str, Service], tmp_path: Path) -> None:
    """Chime's are settings with values that fit and name the other services; Weaviate's are its own, and secure it."""
    for name, service in ours(services).items():
        configuration = assert_settings(environment(service), tmp_path)
        assert configuration.bank.store == "weaviate", name
        assert configuration.redis.url.endswith("@valkey:6379/0")
        assert configuration.weaviate.url == "http://weaviate:8080"
        assert configuration.weaviate.grpc_url == "weaviate:50051"
        assert configuration.weaviate.api_key_env in service["environment"]
        handed_on = {key for key, value in service["environment"].items() if value is None}
        assert handed_on <= {configuration.models.api_key_env}, name
    assert_secured(environment(services["weaviate"]))
    assert set(services["valkey"]["environment"]) == {"VALKEY_PASSWORD"}


@pytest.fixture(params=["redis-server", "valkey"])
def server(request: pytest.FixtureRequest) -> str:
    """Each kind of server program that this machine has."""
    return str(shutil.which(request.param) or wheel_binary())


def test_the_servers_command_keeps_what_it_acknowledges(
    services: dict[str, Service], server: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The command of the log's server, run: it refuses strangers, may lose nothing, and shows its password nowhere."""
    folder = Path(tmp_path_factory.mktemp("v", numbered=True))
    (folder / "valkey-server").symlink_to(server)
    socket = Path(f"/tmp/cv{os.getpid()}{Path(server).name[:1]}")
    *shell, script = [interpolated(word, VARIABLES) for word in services["valkey"]["command"]]
    assert script.count("/data") == 1
    script = script.replace("/data", f"{folder} --port 0 --unixsocket {socket}")
    path = f"{folder}:{os.environ['PATH']}"
    process = subprocess.Popen([*shell, script], env={**environment(services["valkey"]), "PATH": path})
    url = f"unix://:{VARIABLES['VALKEY_PASSWORD']}@{socket}"

    async def asked() -> list[str]:
        async with connected(url) as client:
            return (await durability(client, "here")).warnings

    client = redis.Redis(unix_socket_path=str(socket), password=VARIABLES["VALKEY_PASSWORD"], decode_responses=True)
    try:
        _until(lambda: answers(client))
        assert client.config_get("save") == {"save": ""}
        assert anyio.run(asked) == []
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(socket)).ping()
        shown = Path(f"/proc/{process.pid}/cmdline")
        if shown.exists():
            assert VARIABLES["VALKEY_PASSWORD"].encode() not in shown.read_bytes()
    finally:
        client.close()
        process.terminate()
        process.wait()
        socket.unlink(missing_ok=True)


def test_the_banks_server_refuses_strangers(services: dict[str, Service], weaviate_tools: Path, tmp_path: Path) -> None:
    """Weaviate with the file's own variables and arguments, run: no answer without the key, nor on the data port."""
    program = next(one for one in programs(weaviate_tools, lambda _: None, []) if not one.image)
    for _ in range(4):
        ports = free_ports()
        process = banks_server(services["weaviate"], program.path, ports, tmp_path)
        try:
            if not ready(process, url := f"http://127.0.0.1:{ports.http}/v1"):
                continue  # somebody took one of the ports between the look and the start
            assert status(f"{url}/schema", VARIABLES["WEAVIATE_API_KEY"]) == 200
            assert [status(f"{url}/schema", other) for other in ("", "another")] == [401, 401]
            assert status(f"http://127.0.0.1:{ports.gossip + 1}/indices/Any/shards/one/objects/_search") == 401
            break
        finally:
            process.terminate()
            process.wait()
    else:
        pytest.fail(f"it does not start: {(tmp_path / 'log').read_text(errors='replace')[-2000:]}")
    assert services["weaviate"]["image"].endswith(f":{VERSION}")


def banks_server(service: Service, program: str, ports: Ports, folder: Path) -> subprocess.Popen[bytes]:
    """The banks' server, begun with the file's variables and arguments but for where it is."""
    variables = environment(service) | {
        "PERSISTENCE_DATA_PATH": str(folder / "data"),
        "GRPC_PORT": str(ports.grpc),
        "CLUSTER_GOSSIP_BIND_PORT": str(ports.gossip),
        "CLUSTER_DATA_BIND_PORT": str(ports.gossip + 1),
        "RAFT_PORT": str(ports.raft),
        "RAFT_INTERNAL_RPC_PORT": str(ports.raft + 1),
    }
    words = [word.replace("8080", str(ports.http)) for word in service["command"]]
    words[words.index("--host") + 1] = "127.0.0.1"
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([program, *words], env=variables, stdout=log, stderr=log)


def ready(process: subprocess.Popen[bytes], url: str) -> bool:
    """Whether it is ready by the time that it is, or that it has ended."""
    _until(lambda: process.poll() is not None or status(f"{url}/.well-known/ready") == 200)
    return process.poll() is None


def status(url: str, key: str = "") -> int:
    """What the server answers; 0 while nobody does."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own server on loopback
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - as above
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


@pytest.fixture
def living(redis_server: Any, redis_prefix: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a container whose worker serves."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {
        "PATH": path, "CHIME_REDIS_URL": redis_server.url, "CHIME_REDIS_PREFIX": redis_prefix,
        "CHIME_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    process = subprocess.Popen(
        ["chime", "worker", "act", "--slots", "1"], env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        # Its first line says that it takes jobs; the next ones that it is registered.
        assert "taking act jobs" in process.stderr.readline()
        yield variables
    finally:
        process.terminate()
        process.communicate()


def test_a_workers_health_check_asks_for_that_worker(services: dict[str, Service], living: dict[str, str]) -> None:
    """The check, run: well while a worker of this host beats, and not for a container of another name."""
    script = interpolated(services["act"]["healthcheck"]["test"][1], VARIABLES)

    def is_well(script: str) -> bool:
        return subprocess.run(["sh", "-c", script], env=living, stderr=subprocess.DEVNULL).returncode == 0

    _until(lambda: is_well(script))
    assert not is_well(script.replace("$(hostname)", "another"))


def answers(client: redis.Redis) -> bool:
    """Whether the server is up."""
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.TimeoutError):
        return False


def _until(true: Callable[[], bool]) -> None:
    """Returns once `true` is; a test's own time-out bounds it."""
    while not true():
        time.sleep(0.02)
