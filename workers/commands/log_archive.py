"""`chime log archive`: the beginning of a long log, out of its server."""

import click

from events.errors import BadInput
from events.ids import run_id
from infra.archive import ArchiveReport, archive_log
from infra.redis_log import RedisLogStore
from workers.invocation import Invocation, chime_command, run_async
from workers.run_stream import tell
from workers.sources import server


@chime_command("archive", short_help="Move the beginning of a run's log out of its server.")
@click.argument("run")
@click.option(
    "--to", "base", metavar="PLACE", help="A folder, or a URL that fsspec knows; RUN goes below it (default: the home)."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be archived.")
def archive(invocation: Invocation, run: str, base: str | None, dry_run: bool) -> None:
    """Write what is folded of RUN's log into segments, and let the server forget it.

    Readers notice nothing: log, banks and episodes are read from both. An open run goes on meanwhile; its newest part
    always stays. A command that was cut short is completed by the next one.
    """
    if base is not None and not base.strip():
        raise BadInput("--to names no place: give a folder or a URL")
    if base is not None and "memory://" in base:
        raise BadInput(f"{base} ends with this command, and the log's beginning with it: name a place that lasts")

    async def work() -> tuple[ArchiveReport, bool]:
        async with server(invocation) as there:
            log = await there.existing(run)
            if not isinstance(there.store, RedisLogStore):
                raise BadInput(f"run {run} lies on no server; there is nothing to archive")
            report = await archive_log(there.store, run_id(run), base, lambda event: tell(log, event), dry_run=dry_run)
            return report, there.embedded

    report, embedded = run_async(work)
    output = invocation.output
    output.data({"dry_run": dry_run, "archive": report})
    if dry_run:
        output.line(f"would archive {report.added} more of {report.head} events of run {run} to {report.where}")
        return
    if not report.added:
        output.line(f"nothing to add: {report.last} of {report.head} events of run {run} are archived")
    else:
        output.line(
            f"archived {report.added} events of run {run} in {report.segments} segments to {report.where}; "
            f"{report.head - report.trimmed} of {report.head} stay on the server"
        )
    if not embedded and not report.storage.startswith("/") and "://" not in report.storage and report.last:
        output.note("other machines read it only where they share this folder; --to names a place that all reach")
