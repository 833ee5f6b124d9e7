"""`chime model probe`: what an endpoint's model can do, with evidence."""

import json
from contextlib import AsyncExitStack
from typing import Any, get_args

import click

from events.errors import Unreachable
from infra.clock import SystemClock
from infra.model_findings import Probed
from infra.model_probe import probe
from infra.openai_client import Clients
from runtime.settings import EndpointSettings, ModelSettings, Thinking
from workers.invocation import Invocation, chime_command, run_async
from workers.logs import quiet_logs
from workers.output import Output
from workers.tables import Column


@chime_command("probe", short_help="Ask an endpoint's model what it can do, and show what came back.")
@click.argument("url")
@click.argument("model")
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the key (default: models.api_key_env).")
@click.option("--thinking", type=click.Choice(get_args(Thinking)), help="How it is told not to think.")
@click.option(
    "--timeout",
    "timeout_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Seconds for one answer.",
)
def probe_command(
    invocation: Invocation,
    url: str,
    model: str,
    api_key_env: str | None,
    thinking: Thinking | None,
    timeout_s: float,
) -> None:
    """Ask MODEL at URL, which ends in /v1, some twenty short questions, and show what it takes and what it keeps to.

    Ends with 3 where a plain question is not answered. Nothing is recorded.
    """
    quiet_logs(invocation.configuration.log)
    given = invocation.configuration.models
    endpoint = EndpointSettings(
        base_url=url,
        api_key_env=given.api_key_env if api_key_env is None else api_key_env,
        connect_timeout_s=given.connect_timeout_s,
        stream=given.stream,
    )
    asked = ModelSettings(model=model, thinking=thinking or given.thinking)

    async def work() -> Probed:
        async with AsyncExitStack() as stack:
            clock = SystemClock()
            clients = Clients(invocation.environment, clock, stack)
            return await probe(clients, endpoint, asked, clock, limit_s=timeout_s)

    probed = run_async(work)
    invocation.output.data(probed)
    _print(invocation.output, probed)
    if not probed.answers:
        raise Unreachable(f"{model} at {probed.base_url} does not answer: {probed.reason}")


def _print(output: Output, probed: Probed) -> None:
    output.facts(
        {
            "endpoint": probed.base_url,
            "model": f"{probed.model}, served as {probed.served}" if probed.served else probed.model,
            "build": probed.fingerprint or "-",
            "context": f"{probed.context_tokens} tokens" if probed.context_tokens else "not told",
        }
    )
    output.line()
    output.table(
        [Column("ability"), Column("found"), Column("asked with"), Column("status"), Column("came back", wide=True)],
        [
            [one.ability, one.verdict, one.sent, "-" if one.status is None else str(one.status), one.got]
            for one in probed.findings
        ],
    )
    if probed.settings:
        output.line()
        output.line("for chime.toml:")
        output.line("[models]")
        for name, value in probed.settings.items():
            output.line(f"{name} = {_toml(value)}")


def _toml(value: Any) -> str:
    """A string, a number or a truth value; TOML writes them as JSON does."""
    return json.dumps(value)
