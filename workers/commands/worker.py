"""`chime worker`: take jobs of one kind, many episodes in one loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import click

from infra.redis_client import redacted
from infra.redis_server import embedded_server_sync
from infra.telemetry import configure
from runtime.ports import JobKind
from workers.host import Advance, HostWorker
from workers.invocation import AT_LEAST_ONE, Invocation, chime_command
from workers.jobs import serving
from workers.processes import end_with_parent
from workers.version import VERSION


@chime_command("worker", short_help="Take jobs of one kind: act or diagnose.")
@click.argument("kind", type=click.Choice(["act", "diagnose"]))
@click.option("--slots", type=int, metavar="N", help="Episodes at once in this process (run.slots).")
@click.option(
    "--hosts", type=AT_LEAST_ONE, metavar="N", help="Environment processes at once (default: as many as slots)."
)
@click.option(
    "--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS",
    help="How long SIGTERM lets jobs finish.",
)  # fmt: skip
@click.option("--burst", is_flag=True, help="End when the queue is empty.")
@click.option("--with-parent", is_flag=True, help="End when standard input closes.")
def worker(
    invocation: Invocation,
    kind: str,
    slots: int | None,
    hosts: int | None,
    grace: float,
    burst: bool,
    with_parent: bool,
) -> None:
    """Take jobs of KIND from the server, whichever runs they belong to.

    One process plays many episodes in one loop; start as many processes as the machine has cores, on as many machines
    as you like. SIGTERM finishes what runs and hands back the rest.
    """
    if with_parent:
        end_with_parent()
    settings = invocation.with_flags({"run.slots": ("--slots", slots)}).configuration
    log = settings.log
    configure(
        json=None if log.format == "auto" else log.format == "json",
        level=log.level,
        service=f"worker-{kind}",
        version=VERSION,
    )
    home, redis = invocation.home(), settings.redis
    many = settings.run.slots

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Advance]:
        async with serving(home, redis, settings.weaviate, invocation.environment, hosts or many) as working:
            yield working.advance

    def serve(url: str) -> None:
        invocation.output.note(f"taking {kind} jobs from {redacted(url)}, {many} at once")
        HostWorker(cast("JobKind", kind), url, redis.prefix, lifespan, slots=many, grace_s=grace).work(burst)

    if redis.url:
        serve(redis.url)
    else:
        with embedded_server_sync(home) as server:
            serve(server.url)
