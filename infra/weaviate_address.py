"""Where a Weaviate server is, and the key that it asks for: data that every process may hold."""

import msgspec
from typing_extensions import override


class WeaviateAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A Weaviate server as a client needs it."""

    #: `http://host:port` or `https://host:port`, without a path
    http_url: str
    #: `host:port` without TLS, or `https://host:port`
    grpc_url: str
    #: sent with every call; "" for a server that asks for none
    api_key: str
    #: as the server says it, e.g. `1.39.0`; "" where it was not asked
    version: str

    @override
    def __repr__(self) -> str:
        """Without the key: this lands in logs."""
        return f"WeaviateAddress({self.http_url}, grpc {self.grpc_url}, {self.version or 'unasked'})"
