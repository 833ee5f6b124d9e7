"""Where a run's recalls are answered from: the in-process replica, exact; or a bank store that mirrors it.

`connected` is the door to the store; its vendor is imported with it, so a process without one needs none.
"""

from contextlib import AbstractAsyncContextManager
from importlib import import_module
from typing import Protocol, cast

from events.errors import BadInput
from infra.banks.serving import BankServer
from infra.weaviate_address import WeaviateAddress


class _Client(Protocol):
    def connected(self, address: WeaviateAddress, /) -> AbstractAsyncContextManager[BankServer]: ...


def connected(address: WeaviateAddress) -> AbstractAsyncContextManager[BankServer]:
    """The Weaviate server at `address`, for this process and loop. It need not answer yet: see `BankServer.away`.

    Raises:
        BadInput: the client is not installed, or the address is none.
    """
    try:
        module = cast("_Client", import_module(f"{__name__}.weaviate_client"))
    except ModuleNotFoundError as error:
        raise BadInput(f"banks on Weaviate need {error.name}: pip install 'chime-runtime[weaviate]'") from error
    return module.connected(address)
