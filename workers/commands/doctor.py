"""`chime doctor`."""

from workers.doctor import Row, examine
from workers.invocation import Code, Invocation, chime_command, run_async
from workers.logs import quiet_logs
from workers.tables import Column


@chime_command("doctor", short_help="Check what Chime needs, with the fix for each thing missing.")
def doctor(invocation: Invocation) -> Code:
    """Check Python, packages, home, Redis, rq, environments, embedder, model endpoints and clock.

    Starts and makes nothing. Each configured model is asked a few short questions, to see what it can do. Ends with 3
    when something Chime cannot work without is missing.
    """
    quiet_logs(invocation.configuration.log)

    async def work() -> list[Row]:
        return [row async for row in examine(invocation.resolved, invocation.environment)]

    rows = run_async(work)
    output = invocation.output
    output.data(rows)
    output.table(
        [Column("status"), Column("check"), Column("found", wide=True)], [[r.status, r.check, r.detail] for r in rows]
    )
    for row in rows:
        if row.fix:
            output.line(f"{row.status}: {row.check}: {row.fix}")
    return 3 if any(row.status == "fail" for row in rows) else 0
