"""The deployment files as data, and what all of their tests ask: commands that exist, variables that somebody reads."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from infra.weaviate_process import Ports, settings
from workers.__main__ import chime
from workers.configuration import Configuration
from workers.layers import Flags, resolve

ROOT = Path(__file__).parents[3]
INFRA = ROOT / "infra"

#: what depends on where a Weaviate server runs; every other setting is that of the home's own server
_PLACE = {
    "PERSISTENCE_DATA_PATH", "CLUSTER_HOSTNAME", "CLUSTER_GOSSIP_BIND_PORT", "CLUSTER_DATA_BIND_PORT", "GRPC_PORT",
    "RAFT_PORT", "RAFT_INTERNAL_RPC_PORT", "GOMEMLIMIT",
}  # fmt: skip
_SECRETS = {"AUTHENTICATION_APIKEY_ALLOWED_KEYS", "CLUSTER_BASIC_AUTH_USERNAME", "CLUSTER_BASIC_AUTH_PASSWORD"}

#: a name and a whole version: what is pulled tomorrow is what was pulled today
_PINNED = re.compile(r"[a-z0-9][a-z0-9._/-]*:\d+\.\d+\.\d+(?:-[a-z0-9.-]+)?")
_REFERENCE = re.compile(r"\$\$|\$\{(\w+)(?::([?-])([^}]*))?\}")


class _Strict(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.value != "<<"]
        doubled = {key for key in keys if keys.count(key) > 1}
        assert not doubled, f"{node.start_mark}: {doubled} twice"
        return super().construct_mapping(node, deep=deep)


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file, in order."""
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=_Strict))


def is_pinned(image: str) -> bool:
    """Whether the image is named with a whole version."""
    return _PINNED.fullmatch(image) is not None


def references(value: object) -> Iterator[tuple[str, str]]:
    """(variable, `?` or `-` or nothing) for each reference of a Compose file in `value`."""
    match value:
        case str():
            yield from ((found[1], found[2] or "") for found in _REFERENCE.finditer(value) if found[1])
        case Mapping():
            for one in value.values():
                yield from references(one)
        case list():
            for one in value:
                yield from references(one)


def interpolated(value: str, variables: Mapping[str, str]) -> str:
    """`value` as Compose hands it on."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else variables[found[1]], value)


def assert_command(words: Sequence[str]) -> None:
    """Whether the command line takes these words after `chime`: the command, each option, each value.

    Raises:
        AssertionError: no such command.
        click.UsageError: an option or a value that it does not take.
    """
    command: click.Command = chime
    rest = list(words)
    while isinstance(command, click.Group):
        assert rest, f"{words}: no command"
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"{words}: no command {rest[0]!r}"
        command, rest = found, rest[1:]
    command.make_context(words[0], rest)


def assert_settings(environment: Mapping[str, str], folder: Path) -> Configuration:
    """The configuration that these variables give: every one that is Chime's is a setting's, with a value that fits.

    Raises:
        BadInput: one is not.
    """
    return resolve(Flags(), environment, folder).configuration


def assert_secured(environment: Mapping[str, str]) -> None:
    """Whether a Weaviate server with these variables is set up as the home's own, which tests run."""
    own = settings(Path("/var/lib/weaviate"), Ports(http=8080, grpc=50051, gossip=7946, raft=8300), "key")
    assert set(environment) == set(own)
    alike = set(own) - _PLACE - _SECRETS
    assert {name: environment[name] for name in alike} == {name: own[name] for name in alike}
    assert [name for name in _SECRETS if not environment[name]] == []
