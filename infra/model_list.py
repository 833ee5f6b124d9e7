"""What an endpoint says it serves: `/v1/models`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from events.errors import Unreachable
from infra.clock import SystemClock
from infra.model_errors import Failed
from infra.openai_client import Clients
from runtime.errors import RunStopped
from runtime.settings import ServerSettings

#: where an endpoint's list of models says how much a model can hold
_WINDOWS = ("max_model_len", "context_length", "n_ctx", "context_window", "max_context_length", "max_context_window")

#: long enough for a server that wakes up, short enough for a person, seconds
_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Listed:
    """The models that an endpoint lists; none where it has no such list."""

    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def owner(self) -> str | None:
        """`owned_by` of the first one."""
        owner = self.rows[0].get("owned_by") if self.rows else None
        return owner if isinstance(owner, str) else None

    def window(self, model: str) -> int | None:
        """What `model` can hold, tokens; None where that is not said. A server of one model need not know its name."""
        ours = next((row for row in self.rows if row.get("id") == model), None)
        only = self.rows[0] if len(self.rows) == 1 else {}
        return window_in(ours or only)


async def listed_at(endpoint: ServerSettings, keys: Mapping[str, str]) -> Listed:
    """What is served there.

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
            return Listed([row for row in served["data"] if isinstance(row, dict)])
        except Failed as failed:
            failure = failed.failure.shown(clients.key(endpoint))
            if failure.kind == "key":
                told = f"{endpoint.base_url} {_refused_key(endpoint.api_key_env, clients.key(endpoint))}"
                raise RunStopped("key", told, failure.status) from failed
            if failure.status is None:
                told = f"no model endpoint answers at {endpoint.base_url}: {failure.reason}; is it running?"
                raise Unreachable(told) from failed
            return Listed()
        except (ValueError, TypeError, LookupError, RecursionError):
            return Listed()  # a list of another shape says nothing


def _refused_key(name: str, key: str) -> str:
    """What is wrong with a key, by the name of its variable."""
    if key:
        return f"refuses the key in {name}"
    return f"wants a key: set {name}" if name else "wants a key: name its variable with --api-key-env"


def window_in(row: Mapping[str, Any]) -> int | None:
    """What one row of a list of models says that the model can hold, tokens; None where it does not."""
    meta = row.get("meta")
    for place in (row, meta if isinstance(meta, dict) else {}):
        for name in _WINDOWS:
            told = place.get(name)
            if isinstance(told, int) and not isinstance(told, bool) and 0 < told < 1 << 40:
                return told
    return None
