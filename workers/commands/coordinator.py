"""`chime coordinator`: conductor and projector for every open run of a server."""

from infra.clock import SystemClock
from infra.ownership import assert_sole_owner
from infra.rq_queue import RqQueue
from infra.telemetry import configure
from workers.bank_access import with_banks
from workers.connections import connections
from workers.coordinator import Coordinator
from workers.driving import grounded, until_signal
from workers.invocation import Invocation, chime_command, run_async
from workers.version import VERSION


@chime_command("coordinator", short_help="Host conductor and projector for the open runs.")
def coordinator(invocation: Invocation) -> None:
    """Serve every open run of the server until SIGTERM or Ctrl-C.

    It enqueues the jobs that are due and folds what the gate said. A second one does no harm: both append the same.
    """
    settings = invocation.configuration
    log = settings.log
    configure(
        json=None if log.format == "auto" else log.format == "json",
        level=log.level,
        service="coordinator",
        version=VERSION,
    )
    assert_sole_owner()
    home = invocation.home()

    async def serve() -> None:
        clock = SystemClock()
        async with (
            until_signal(),
            connections(home, settings.redis.url, settings.redis.prefix, clock) as logs,
            with_banks(logs, home, settings.weaviate, invocation.environment, clock, starting=True) as there,
        ):
            there.warn()
            invocation.output.note(f"serving the open runs of {there.where}")
            async with RqQueue(there.url, there.prefix) as queue:
                ground = grounded(there, queue, clock, settings.intake, settings.run.warn_degraded)
                await Coordinator(there.store, ground).serve()

    run_async(serve)
