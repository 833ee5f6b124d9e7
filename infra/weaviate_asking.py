"""What a Weaviate server says of itself: whether it is ready, takes the key, and which version it is."""

import http.client
import json
import re
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import msgspec

from events.errors import BadInput, Unreachable
from infra.grpc_health import grpc_serves
from infra.weaviate_address import WeaviateAddress

#: how long one question may take, seconds
ASK_S = 5.0
#: the oldest server that the bank store is meant for
OLDEST = (1, 37)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def asked(address: WeaviateAddress, timeout_s: float = ASK_S) -> str | None:
    """The version of a server that is ready on REST and gRPC and takes the key; None while it is not."""
    try:
        version = version_of(address.http_url, address.api_key, timeout_s)
        return version if grpc_serves(address.grpc_url, timeout_s) else None
    except OSError:
        return None


def answering(address: WeaviateAddress, timeout_s: float = ASK_S) -> WeaviateAddress:
    """The address with the server's version; for a server of somebody's, where people read what is wrong.

    Raises:
        Unreachable: nobody answers on REST or on gRPC, or it is not ready; says where.
        BadInput: it refuses the key, or is older than the store is meant for.
    """
    try:
        version = version_of(address.http_url, address.api_key, timeout_s)
    except PermissionError as error:
        raise BadInput(f"Weaviate at {error}; put its key into the variable that weaviate.api_key_env names") from error
    except OSError as error:
        raise Unreachable(f"Weaviate at {error}") from error
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        raise BadInput(f"Weaviate at {address.http_url} is version {version}, older than {OLDEST[0]}.{OLDEST[1]}")
    try:
        serves = grpc_serves(address.grpc_url, timeout_s)
    except OSError as error:
        raise Unreachable(
            f"Weaviate at {address.http_url} answers, but not on gRPC at {address.grpc_url} ({error}); "
            "weaviate.grpc_url says where that is"
        ) from error
    if not serves:
        raise Unreachable(f"Weaviate at {address.grpc_url} does not serve gRPC yet")
    return msgspec.structs.replace(address, version=version)


def version_of(http_url: str, api_key: str, timeout_s: float = ASK_S) -> str:
    """The version that a server says, once it is ready and takes the key.

    Raises:
        PermissionError: it refuses the key.
        OSError: nobody answers, or what answers is not ready, or no Weaviate.
    """
    _get(f"{http_url}/v1/.well-known/ready", api_key, timeout_s)
    try:
        return str(json.loads(_get(f"{http_url}/v1/meta", api_key, timeout_s))["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectionError(f"{http_url} answers, but is no Weaviate") from error


def _get(url: str, api_key: str, timeout_s: float) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https: checked, or ours
    # A proxy that is meant for the way out knows nothing of a server in here.
    inside = urlsplit(url).hostname in _LOOPBACK
    opener = urllib.request.build_opener(*[urllib.request.ProxyHandler({})] if inside else [])
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            body: bytes = answer.read(1 << 20)
            return body
    except urllib.error.HTTPError as error:
        with error:
            if error.code in (401, 403):
                raise PermissionError(f"{url} refuses the key ({error.code})") from None
            raise ConnectionError(f"{url} answers {error.code}") from None
    except urllib.error.URLError as error:
        raise ConnectionError(f"{url} does not answer: {error.reason}") from error
    except TimeoutError as error:
        raise ConnectionError(f"{url} does not answer within {timeout_s:.0f} s") from error
    except (http.client.HTTPException, ValueError) as error:
        raise ConnectionError(f"{url} does not speak HTTP") from error
