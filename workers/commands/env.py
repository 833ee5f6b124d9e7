"""`chime env`: benchmark environments."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from events.errors import UnknownName
from infra.environments import BUILT_IN, load
from infra.environments.answers import OracleEnvironment
from infra.environments.conformance import Row
from infra.environments.conformance import check as conformance
from infra.environments.install import INSTALLABLE, installed
from infra.environments.install import install as installed_now
from infra.environments.limits import Limits
from workers.invocation import Code, Invocation, chime_command, run_async
from workers.logs import quiet_logs
from workers.tables import Column


@chime_command("list", short_help="List the environments and whether they are there.")
@click.option("--domains", is_flag=True, help="Start each one and list its domains with their numbers of tasks.")
def list_environments(invocation: Invocation, domains: bool) -> None:
    """List the built-in environments.

    A run also takes `module:Class` (a class of yours in process) and `cmd:PROGRAM ...` (any program that speaks the
    protocol).
    """
    quiet_logs(invocation.configuration.log)
    home = invocation.resolved.home
    there = set(installed(home))
    rows: list[dict[str, Any]] = []
    for name in BUILT_IN:
        usable = name not in INSTALLABLE or name in there
        state = "built in" if name not in INSTALLABLE else "installed" if name in there else "not installed"
        rows.append({"environment": name, "state": state, "install": None if usable else f"chime env install {name}"})
        if domains and usable:
            rows[-1] |= run_async(partial(_described, name, invocation))
    invocation.output.data(rows)
    columns = [Column("environment"), Column("state")]
    if domains:
        columns += [Column("version"), Column("tasks", "right"), Column("domains", wide=True)]
    columns.append(Column("to install"))
    invocation.output.table(columns, [_cells(row, domains=domains) for row in rows])


async def _described(name: str, invocation: Invocation) -> dict[str, Any]:
    environment = load(name, invocation.resolved.home, environ=invocation.environment)
    try:
        description = await environment.describe()
    finally:
        await environment.aclose()
    return {
        "version": description.version,
        "domains": description.domains,
        "evaluator": f"{description.evaluator} {description.evaluator_version}".strip(),
    }


def _cells(row: dict[str, Any], *, domains: bool) -> list[object]:
    cells: list[object] = [row["environment"], row["state"]]
    if domains:
        known: dict[str, int] = row.get("domains", {})
        listed = ", ".join(f"{name} {count}" for name, count in known.items())
        cells += [row.get("version", ""), sum(known.values()) or "", listed]
    return [*cells, row["install"] or ""]


@chime_command("install", short_help="Install an environment into its own virtual environment.")
@click.argument("name")
def install(invocation: Invocation, name: str) -> None:
    """Install a benchmark into `<home>/environments/NAME`; needs a package index. Doing it twice is harmless."""
    if name in BUILT_IN and name not in INSTALLABLE:
        invocation.output.data({"environment": name, "python": None})
        invocation.output.line(f"{name} is built in; there is nothing to install")
        return
    if name not in INSTALLABLE:
        raise UnknownName("environment", name, INSTALLABLE)
    python = installed_now(name, invocation.home(), progress=invocation.output.note)
    invocation.output.data({"environment": name, "python": str(python)})
    invocation.output.line(f"{name} is installed; next: chime env check {name}")


@chime_command("check", short_help="Run an environment's conformance suite.")
@click.argument("name")
@click.option("--sample", default=30, show_default=True, type=click.IntRange(min=1), help="Tasks a domain.")
@click.option("--domain", "domains", multiple=True, help="Only this domain; may be repeated.")
def check(invocation: Invocation, name: str, sample: int, domains: Sequence[str]) -> Code:
    """Check that reference solutions score 1 and wrong ones 0, that crashes, time-outs and noise are told, and that no
    process is left behind. Ends with 4 when something is not as it should be.
    """
    quiet_logs(invocation.configuration.log)
    home = invocation.resolved.home

    def make(limits: Limits) -> OracleEnvironment:
        return load(name, home, limits=limits, oracle=True, environ=os.environ)

    async def work() -> list[Row]:
        rows: list[Row] = []
        async for row in conformance(make, sample=sample, domains=list(domains) or None):
            invocation.output.note(f"{'ok  ' if row.ok else 'FAIL'}  {row.name}: {row.detail}")
            rows.append(row)
        return rows

    rows = run_async(work)
    failed = [row for row in rows if not row.ok]
    invocation.output.data(rows)
    invocation.output.line(f"{len(rows) - len(failed)} of {len(rows)} checks passed")
    return 4 if failed else 0
