"""What an endpoint says it serves: `/v1/models`, asked once before a run."""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack

from events.errors import Unreachable
from infra.clock import SystemClock
from infra.model_errors import Failed
from infra.openai_client import Clients
from runtime.errors import RunStopped
from runtime.settings import ServerSettings

#: long enough for a server that wakes up, short enough for a person, seconds
_WAIT_S = 10.0


async def owner_of(endpoint: ServerSettings, keys: Mapping[str, str]) -> str | None:
    """`owned_by` of the first model served; None where the endpoint has no such list.

    Args:
        endpoint: where to ask.
        keys: name of an environment variable -> the key it holds.

    Raises:
        BadInput: an address or a key that no request can be made with.
        Unreachable: nothing answers at that address.
        RunStopped: the key is refused.
    """
    async with AsyncExitStack() as stack:
        clients = Clients(keys, SystemClock(), stack)
        try:
            served = json.loads(await clients.models(endpoint, _WAIT_S))
            owner = served["data"][0]["owned_by"]
        except Failed as failed:
            failure = failed.failure.shown(clients.key(endpoint))
            if failure.kind == "key":
                name = endpoint.api_key_env or "(none is configured)"
                raise RunStopped("key", f"{endpoint.base_url} refuses the key in {name}", failure.status) from failed
            if failure.status is None:
                told = f"no model endpoint answers at {endpoint.base_url}: {failure.reason}; is it running?"
                raise Unreachable(told) from failed
            return None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None  # a list of another shape says nothing
    return owner if isinstance(owner, str) else None
