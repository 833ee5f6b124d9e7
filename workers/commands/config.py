"""`chime config`."""

import json

import click

from workers.invocation import Invocation, chime_command
from workers.layers import defaults, shown
from workers.presets import meaning
from workers.tables import Column


@chime_command(short_help="Print every setting, and where it comes from.")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--diff", is_flag=True, help="Only what differs from the defaults.")
def show(invocation: Invocation, origin: bool, diff: bool) -> None:
    """Print every setting. Flags win over the environment, over chime.toml, over a preset, over the defaults; the
    thresholds that nobody gives are those of the chosen embedder's profile.

    A role's setting that is not given is that of [models] and is not listed. `CHIME_POLICY_THETA_MERGE` is the
    variable of `policy.theta_merge`, and so on.
    """
    resolved, default = invocation.resolved, defaults()
    rows = [
        {
            "setting": key,
            "value": shown(key, value),
            "origin": resolved.origins[key].text,
            "default": default.get(key),
            "meaning": meaning(key),
        }
        for key, value in resolved.values.items()
        if not diff or value != default.get(key)
    ]
    invocation.output.data(rows)
    columns = [Column("setting"), Column("value")]
    names = ["setting", "value"]
    if diff:
        columns.append(Column("default"))
        names.append("default")
    if origin:
        columns.append(Column("from"))
        names.append("origin")
    columns.append(Column("meaning", wide=True))
    names.append("meaning")
    cells = [[_cell(row[name]) for name in names] for row in rows]
    invocation.output.table(columns, cells, empty="every setting has its default value")


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case "":
            return '""'
        case bool():
            return json.dumps(value)
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)
