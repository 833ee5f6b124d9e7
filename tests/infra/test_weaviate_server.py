"""The home's own Weaviate: shared, adopted, stopped by the last one out, and clear when it cannot start."""

from weaviate_servers import OwnWeaviate

from infra.weaviate_address import WeaviateAddress
from infra.weaviate_asking import asked
from infra.weaviate_process import VERSION


def test_one_server_serves_all_tests(weaviate_server: WeaviateAddress) -> None:
    """It is ready on REST and gRPC, takes its key, and is the version that was measured."""
    assert asked(weaviate_server) == VERSION


def test_a_server_of_a_test_s_own_is_killed_and_comes_back(own_weaviate_server: OwnWeaviate) -> None:
    """At the same address, with the same key."""
    first = own_weaviate_server.address
    own_weaviate_server.kill()
    assert asked(first) is None
    assert own_weaviate_server.start() == first
    own_weaviate_server.wipe()
    assert own_weaviate_server.start() == first
