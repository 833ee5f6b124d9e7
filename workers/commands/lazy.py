"""A click group that knows its commands from the table and imports one only when it is chosen."""

import gc
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, cast

import click
from click.shell_completion import CompletionItem

from workers.commands import Noun, Verb


def near(name: str, known: list[str]) -> str:
    """` (did you mean ...?)`, or what there is where nothing is near."""
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"there is: {', '.join(known)}"


def _imported(module: str) -> ModuleType:
    """The module; whatever it loads is kept out of the garbage collector, which would look through it again and again.

    A listing costs a twentieth less so.
    """
    if module in sys.modules:
        return sys.modules[module]
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


# `override` is not in the typing of 3.11, and importing typing_extensions costs a fifth of a help page: it is waived.
# `ctx` is of click's signatures.


class LazyGroup(click.Group):
    """The commands of `entries`, in that order; `default` runs where no command is named."""

    def __init__(
        self, name: str | None = None, *, entries: Mapping[str, Verb | Noun], default: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.entries, self.default = entries, default

    def list_commands(self, ctx: click.Context) -> list[str]:  # type: ignore[explicit-override]  # noqa: ARG002 - see above
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # type: ignore[explicit-override]  # noqa: ARG002 - see above
        match self.entries.get(cmd_name):
            case None:
                return None
            case Noun() as noun:
                return LazyGroup(cmd_name, entries=noun.verbs, default=noun.default, help=noun.help)
            case Verb() as verb:
                return cast("click.Command", getattr(_imported(verb.module), verb.attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # type: ignore[explicit-override]  # noqa: ARG002 - see above
        """The table as it stands, without an import."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # type: ignore[explicit-override]  # see above
        """A bare noun, or one with options only, means its default."""
        bare = not args or (args[0].startswith("-") and args[0] not in ("--help", "-h"))
        if self.default is not None and bare:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(  # type: ignore[explicit-override]  # see above
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises: click.UsageError for a command that is not in the table."""
        if args[0] not in self.entries and not args[0].startswith("-"):
            path = " ".join(ctx.command_path.split()[1:])
            what = f"{path} {args[0]}".strip()
            raise click.UsageError(f"no command {what!r}; {near(args[0], list(self.entries))}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:  # type: ignore[explicit-override]  # see above
        """Names from the table, so that completion imports no command."""
        item = CompletionItem
        names = [item(name, help=entry.help) for name, entry in self.entries.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
