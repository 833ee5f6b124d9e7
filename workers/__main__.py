"""`chime`: the lazy command group, and the one place where an error becomes a line and an exit code."""

import errno
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import click

from events.errors import BadInput, BudgetSpent, ChimeError, Mismatch, Unreachable
from workers.commands import TREE
from workers.commands.lazy import LazyGroup
from workers.terminal import printable
from workers.version import VERSION

OK, FAILED, USAGE, UNREACHABLE, MISMATCH, BUDGET, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
#: what a shell says of a program that a closed pipe ended: 128 + SIGPIPE
PIPE_CLOSED = 141

#: the families of `events.errors`, in the order in which the gravest of several counts
_FAMILIES: tuple[tuple[type[ChimeError], int], ...] = (
    (Mismatch, MISMATCH),
    (Unreachable, UNREACHABLE),
    (BudgetSpent, BUDGET),
    (BadInput, USAGE),
    (ChimeError, FAILED),
)
#: conditions of the machine that have one clear answer each
_MACHINE: dict[int, tuple[int, str]] = {
    errno.ENOSPC: (UNREACHABLE, "no space left on the disk; free some, then run the same command again"),
    errno.EDQUOT: (UNREACHABLE, "the disk quota is used up; free some, then run the same command again"),
    errno.EROFS: (USAGE, "this file system is read-only; name a folder that can be written (CHIME_HOME, -o)"),
    errno.EACCES: (USAGE, "permission denied; name a place you may use (CHIME_HOME, -o), or change its permissions"),
    errno.EPERM: (USAGE, "not permitted; name a place you may use (CHIME_HOME, -o), or change its permissions"),
    errno.ENOENT: (USAGE, "no such file or folder"),
    errno.ENOTDIR: (USAGE, "a part of this path is a file, not a folder"),
    errno.EISDIR: (USAGE, "this is a folder, not a file"),
    errno.EEXIST: (USAGE, "this exists already"),
    errno.EADDRINUSE: (USAGE, "this port is in use; name another one"),
    errno.ENAMETOOLONG: (USAGE, "this name is too long"),
}
_CLICKS_HINT = "Did you mean"
#: numpy's linear algebra runs in one thread: more cost more than they bring at these sizes, and workers share the cores
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"chime {VERSION}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    entries=TREE,
    context_settings={"max_content_width": 120, "help_option_names": ["--help", "-h"]},
    epilog="Exit codes: 0 ok, 1 finished with failures, 2 usage or configuration, 3 a dependency is unreachable, "
    "4 verification mismatch, 5 budget spent, 130 interrupted (a run can be resumed). "
    "Every command knows --json, --debug, --config, --preset, -s/--set, --home and --redis-url.",
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Say which.")
def chime() -> None:
    """An LLM agent that learns only from the stage that earned the outcome.

    Begin with `chime demo`; it needs no key and no server.
    """


def _prepare() -> None:
    """What holds for the whole process: its threads, its streams, where it finds a user's own modules."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (`>&-`): nobody listens
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the process's life
    if "" not in sys.path:
        # A user's own `module:Class` is found in the working folder: last, so that nothing there hides a part of ours.
        sys.path.append("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Only --debug or CHIME_DEBUG shows a traceback."""
    _prepare()
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    context: click.Context | None = None
    try:
        if "_CHIME_COMPLETE" in os.environ:
            chime.main(args=given, prog_name="chime")  # a shell asks for completions
        # Not `chime.main`: click would answer a closed pipe and Ctrl-C by itself.
        with chime.make_context("chime", given) as context:
            code = chime.invoke(context)
        if context.obj is not None:
            context.obj.release()
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except BrokenPipeError:
        # The reader of our output went away (`chime ... | head`): nothing to say, and nowhere to say it.
        _forget_stdout()
        return PIPE_CLOSED
    except BaseException as error:  # noqa: BLE001 - the outermost place: every error becomes a line and a code here
        if "--debug" in own or os.environ.get("CHIME_DEBUG", "").lower() not in ("", "0", "false", "no"):
            traceback.print_exc()
        try:
            return _report(error, as_json="--json" in own, output=context.obj if context else None)
        except OSError:  # stdout takes no envelope either: a full disk, a reader that left
            _forget_stdout()
            return explained(error)[2]


def _forget_stdout() -> None:
    """What could not be written is given up, so that the interpreter does not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: BaseException, *, as_json: bool, output: Any = None) -> int:
    """The line and the code of `error`; `output` is the command's `Output`, None where it did not come so far."""
    kind, message, code = explained(error)
    if message:
        sys.stderr.write(f"chime: {printable(message)}\n")
    if output is not None:
        output.release({"kind": kind, "message": message, "exit_code": code} if as_json and code != OK else None)
    elif as_json and code != OK:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = {"schema": 1, "as_of": now, "error": {"kind": kind, "message": message, "exit_code": code}}
        sys.stdout.write(json.dumps(body) + "\n")
    return code


def explained(error: BaseException) -> tuple[str, str, int]:
    """What went wrong as (kind, one line that says what to do, exit code)."""
    leaf = min(_leaves(error), key=_gravity)
    kind = type(leaf).__name__
    match leaf:
        case click.exceptions.Exit():
            return kind, "", leaf.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "Interrupted", "interrupted", INTERRUPTED
        case SystemExit():
            return kind, "", leaf.code if isinstance(leaf.code, int) else FAILED
        case click.UsageError():
            path = leaf.ctx.command_path if leaf.ctx else "chime"
            return kind, f"{_sentence(leaf)} (see {path} --help)", USAGE
        case click.ClickException():
            return kind, _sentence(leaf), USAGE
        case ChimeError():
            return kind, str(leaf), next(code for family, code in _FAMILIES if isinstance(leaf, family))
        case OSError() if leaf.errno in _MACHINE:
            code, advice = _MACHINE[leaf.errno]
            return kind, f"{leaf.filename}: {advice}" if leaf.filename else advice, code
        case _:
            text = str(leaf).strip().splitlines()[:1] or ["no message"]
            return kind, f"unexpected {kind}: {text[0]}; run it again with --debug for the traceback", FAILED


def _sentence(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).removesuffix(".")
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        close = get_close_matches(error.option_name, error.possibilities, n=1, cutoff=0.5) or error.possibilities
        message = f"{message.partition(_CLICKS_HINT)[0].rstrip('. (')}; did you mean {' or '.join(close)}?"
    return message[:1].lower() + message[1:]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _gravity(error: BaseException) -> int:
    """Which of several errors is named: what we did not foresee, then the families, then a person's Ctrl-C."""
    order: list[Any] = [family for family, _ in _FAMILIES]
    if isinstance(error, KeyboardInterrupt | click.Abort | click.exceptions.Exit):
        return len(order) + 1
    return next((at + 1 for at, family in enumerate(order) if isinstance(error, family)), 0)


if __name__ == "__main__":
    sys.exit(main())
