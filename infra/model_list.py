"""What an endpoint says it serves: `/v1/models`, asked once before a run."""

from collections.abc import Mapping

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpx2Client, Timeout

from events.errors import Unreachable
from runtime.errors import RunStopped
from runtime.settings import EndpointSettings

#: long enough for a server that wakes up, short enough for a person, seconds
_WAIT_S = 10.0


async def owner_of(endpoint: EndpointSettings, keys: Mapping[str, str]) -> str | None:
    """`owned_by` of the first model served; None where the endpoint has no such list.

    Args:
        endpoint: where to ask.
        keys: name of an environment variable -> the key it holds.

    Raises:
        Unreachable: nothing answers at that address.
        RunStopped: the key is refused.
    """
    http = DefaultAsyncHttpx2Client(follow_redirects=False, timeout=Timeout(_WAIT_S))
    key = keys.get(endpoint.api_key_env, "") or "none"
    async with AsyncOpenAI(api_key=key, base_url=endpoint.base_url, max_retries=0, http_client=http) as client:
        try:
            served = await client.models.list()
            return served.data[0].owned_by if served.data else None
        except APIConnectionError as error:
            raise Unreachable(
                f"no model endpoint answers at {endpoint.base_url}: {error.__cause__ or error}; is it running?"
            ) from error
        except APIStatusError as error:
            if error.status_code in (401, 403):
                name = endpoint.api_key_env or "(none is configured)"
                raise RunStopped("key", f"{endpoint.base_url} refuses the key in {name}") from error
            return None
        except (APIError, AttributeError, TypeError, ValueError):
            return None  # a list of another shape says nothing
