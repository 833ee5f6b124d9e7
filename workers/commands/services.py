"""`chime services`: the servers that a home has of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from events.errors import Unreachable
from infra.process_identity import resident_bytes
from infra.weaviate_asking import answering
from infra.weaviate_building import Waiter
from infra.weaviate_finding import ADVICE, Way, provided, ways
from infra.weaviate_process import VERSION
from infra.weaviate_server import Running, Start, after, folder_of, keep, named, running, state_of, stop
from workers.bank_access import address_of
from workers.invocation import Invocation, chime_command
from workers.logs import quiet_logs
from workers.tables import Column

F = TypeVar("F", bound=Callable[..., Any])


def _service(function: F) -> F:
    """Which server: there is one to name."""
    return click.argument("service", type=click.Choice(["weaviate"]), default="weaviate")(function)


@chime_command("status", short_help="Show the home's servers and how they were found.")
@_service
def status(invocation: Invocation, service: str) -> None:
    """Show SERVICE: whether it runs, where, which version, how it was found, and which ways there are to one.

    Ends with 3 where a server of yours, or one that runs, does not answer.
    """
    quiet_logs(invocation.configuration.log)
    if invocation.configuration.weaviate.url:
        _show_yours(invocation, service)
        return
    home, output = invocation.resolved.home, invocation.output
    state, one = state_of(home), running(home) or named(home)
    all_ways = ways(home / "tools")
    output.data(_facts(home, service, state, one, all_ways))
    output.facts({"service": service, "state": state, **(_told(home, one) if one is not None else {})})
    output.line()
    output.line("ways to a server, in order")
    output.table(
        [Column("way"), Column("open"), Column("what it does, or what is in the way", wide=True)],
        [["CHIME_WEAVIATE_URL", "no", "not set; a server of yours, which Chime does not start"]]
        + [[way.name, "yes" if way.open else "no", way.detail] for way in all_ways],
    )
    if state == "silent":
        pid = f" (pid {one.process.pid})" if one is not None and one.process is not None else ""
        raise Unreachable(f"Weaviate{pid} holds {folder_of(home)} and does not answer; it starts, ends or hangs")


@chime_command("install", short_help="Build or fetch a server's program without starting it.")
@_service
def install(invocation: Invocation, service: str) -> None:
    """Find the program of SERVICE, or build or fetch it into `<home>/tools`; some minutes, once. Doing it twice is
    harmless.
    """
    quiet_logs(invocation.configuration.log)
    tools = invocation.home() / "tools"
    misses: list[str] = []
    program = provided(tools, Waiter(invocation.output.note), misses)
    if program is None:
        raise Unreachable(f"no Weaviate {VERSION} to be had ({'; '.join(misses)}): {ADVICE}")
    all_ways = ways(tools)
    told = {"version": VERSION, "way": program.way, "path": program.path, "ways": all_ways}
    invocation.output.data({"service": service, **told})
    invocation.output.line(f"Weaviate {VERSION} from {program.way} ({program.image or program.path})")
    invocation.output.line(_without(program.way, all_ways))


@chime_command("start", short_help="Start a server that runs until `chime services stop`.")
@_service
@click.option(
    "--isolated",
    is_flag=True,
    help="In a network namespace of its own: no other machine reaches any of its ports (Linux).",
)
def start(invocation: Invocation, service: str, isolated: bool) -> None:
    """Start SERVICE for this home, or find it running, and let it run until `chime services stop`.

    A run with `bank.store = weaviate` starts one by itself where none runs, and ends it again.
    """
    quiet_logs(invocation.configuration.log)
    if invocation.configuration.weaviate.url:
        _show_yours(invocation, service)
        return
    home, output = invocation.home(), invocation.output
    one, begun = keep(home, Start(progress=output.note, isolated=isolated or None))
    all_ways = ways(home / "tools")
    output.data({**_facts(home, service, "running", one, all_ways), "started": begun})
    output.facts({"service": service, "state": "started" if begun else "running before", **_told(home, one)})
    output.line(_without(one.way, all_ways))
    if not one.isolated:
        output.note(
            f"ports {one.ports.grpc} (gRPC) and {one.ports.gossip + 1} (data) listen on all interfaces and ask for a "
            "key and a password; with --isolated nobody else reaches them"
        )


@chime_command("stop", short_help="Stop a server of this home.")
@_service
@click.option("--now", is_flag=True, help="Also where a run still uses it; runs go on from their replicas.")
def stop_(invocation: Invocation, service: str, now: bool) -> None:
    """Stop SERVICE. Where something still uses it, it ends with the last that does, or at once with --now.

    Its data stay in `<home>/weaviate`.
    """
    quiet_logs(invocation.configuration.log)
    output = invocation.output
    if invocation.configuration.weaviate.url:
        output.data({"service": service, "ended": False, "yours": True})
        output.line(f"{invocation.configuration.weaviate.url} is a server of yours; Chime does not stop it")
        return
    found = stop(invocation.resolved.home, now=now, progress=output.note)
    pid = found.server.process.pid if found.server is not None and found.server.process is not None else None
    output.data({"service": service, "ended": found.ended, "pid": pid})
    if found.server is None and found.ended:
        output.line("no Weaviate of this home runs")
    elif found.ended:
        output.line(f"Weaviate (pid {pid}) has ended")
    else:
        output.line(f"Weaviate (pid {pid}) is in use and ends with the last that uses it; --now ends it at once")


def _without(way: str, all_ways: list[Way]) -> str:
    """What would be done next, if what was chosen were not there."""
    later = [f"{one.name} ({one.detail})" for one in after(way, all_ways) if one.open]
    return f"without it: {'; '.join(later) or 'no other way is open'}"


def _show_yours(invocation: Invocation, service: str) -> None:
    """A server that Chime has not started: that it answers."""
    configuration = invocation.configuration.weaviate
    address = answering(address_of(configuration, invocation.environment))
    facts = {"http_url": address.http_url, "grpc_url": address.grpc_url, "version": address.version}
    invocation.output.data({"service": service, "state": "running", "way": "CHIME_WEAVIATE_URL", **facts})
    invocation.output.facts(
        {
            "service": service,
            "state": "running, a server of yours (weaviate.url)",
            "http": address.http_url,
            "gRPC": address.grpc_url,
            "version": address.version,
            "key": f"in the variable {configuration.api_key_env}" if address.api_key else "none is set",
        }
    )


def _told(home: Path, one: Running) -> dict[str, object]:
    """A server of the home's for people; never its key."""
    memory = resident_bytes(one.process) if one.process is not None else None
    return {
        "http": one.address.http_url,
        "gRPC": one.address.grpc_url,
        "version": one.version,
        "pid": one.process.pid if one.process is not None and one.process.lives else "-",
        "memory": f"{memory / 1e6:.0f} MB" if memory is not None else "-",
        "found": f"{one.way} ({one.path})",
        "network": "a namespace of its own" if one.isolated else "the machine's",
        "runs until": "chime services stop weaviate" if one.kept else "its last user ends",
        "data": folder_of(home) / "data",
        "key": f"in {folder_of(home) / 'server.json'}",
    }


def _facts(home: Path, service: str, state: str, one: Running | None, all_ways: list[Way]) -> dict[str, object]:
    """The same for programs."""
    facts: dict[str, object] = {"service": service, "state": state, "ways": all_ways}
    if one is not None:
        memory = resident_bytes(one.process) if one.process is not None else None
        facts |= {
            "http_url": one.address.http_url,
            "grpc_url": one.address.grpc_url,
            "ports": one.ports,
            "version": one.version,
            "pid": one.process.pid if one.process is not None else None,
            "memory_bytes": memory,
            "way": one.way,
            "path": one.path,
            "isolated": one.isolated,
            "kept": one.kept,
            "data": str(folder_of(home) / "data"),
            "key_file": str(folder_of(home) / "server.json"),
        }
    return facts
