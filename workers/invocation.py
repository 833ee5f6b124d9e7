"""One invocation of a command: its output, its configuration, and the options that every command has."""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import anyio
import click

from workers.configuration import Configuration
from workers.home import opened
from workers.layers import Flags, Resolved, resolve
from workers.output import Output

P = ParamSpec("P")
R = TypeVar("R")

#: what a command returns: nothing, or its exit code
Code = int | None

#: a number of things of which there must be some
AT_LEAST_ONE = click.IntRange(min=1)


@dataclass(frozen=True)
class Invocation:
    """What a command is given first."""

    output: Output
    flags: Flags
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(dict(os.environ)))
    folder: Path = field(default_factory=Path.cwd)

    @cached_property
    def resolved(self) -> Resolved:
        """The configuration with its origins.

        Raises:
            BadInput: as `workers.layers.resolve`.
        """
        return resolve(self.flags, self.environment, self.folder)

    @property
    def configuration(self) -> Configuration:
        return self.resolved.configuration

    def home(self) -> Path:
        """The home, made where it is missing.

        Raises:
            BadInput: it cannot be made or written.
        """
        return opened(self.resolved.home)

    def with_flags(self, named: Mapping[str, tuple[str, object]]) -> "Invocation":
        """This invocation with flags that stand for settings: dotted setting -> (flag, value); None = not given."""
        given = {key: pair for key, pair in named.items() if pair[1] is not None}
        flags = Flags(
            file=self.flags.file, preset=self.flags.preset, sets=self.flags.sets, named={**self.flags.named, **given}
        )
        return Invocation(self.output, flags, self.environment, self.folder)


_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON envelope on stdout."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error (as CHIME_DEBUG=1 does)."),
    click.option("--config", "config_file", metavar="FILE", help="Read FILE instead of ./chime.toml."),
    click.option("--preset", metavar="NAME", help="Other defaults: paper (Table 7)."),
    click.option(
        "-s", "--set", "sets", metavar="A.B=C", multiple=True, help="Set one setting, such as policy.top_k=5."
    ),
    click.option("--home", metavar="DIR", help="Where data is kept (default ./.chime)."),
    click.option("--redis-url", metavar="URL", help="A server of yours instead of the home's own."),
)


def chime_command(name: str | None = None, **settings: Any) -> Callable[[Callable[..., Code]], click.Command]:
    """A click command whose function takes an `Invocation` first and may return its exit code.

    Adds the options that every command has; the others are declared below it as usual.
    """

    def decorate(function: Callable[..., Code]) -> click.Command:
        def call(
            as_json: bool,
            debug: bool,
            config_file: str | None,
            preset: str | None,
            sets: tuple[str, ...],
            home: str | None,
            redis_url: str | None,
            **given: Any,
        ) -> Code:
            del debug  # read by `workers.__main__`, which may fail before this point
            named = {"home": ("--home", home), "redis.url": ("--redis-url", redis_url)}
            flags = Flags(
                file=config_file,
                preset=preset,
                sets=sets,
                named={key: pair for key, pair in named.items() if pair[1] is not None},
            )
            output = Output(json=as_json, held=[])
            # Where `workers.__main__` finds it, which writes the envelope at the end: one, whatever happens.
            click.get_current_context().find_root().obj = output
            return function(Invocation(output, flags), **given)

        update_wrapper(call, function)
        for option in reversed(_OPTIONS):
            call = option(call)
        command: click.Command = click.command(name, cls=click.Command, **settings)(call)
        return command

    return decorate


def run_async(function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function` in an event loop of its own; the way from a command into the async half."""

    async def entry() -> R:
        return await function(*args, **kwargs)

    return anyio.run(entry)
