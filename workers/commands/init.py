"""`chime init`."""

import errno

import click

from events.errors import BadInput
from workers import paths
from workers.invocation import Invocation, chime_command
from workers.layers import FILE
from workers.template import template

#: a disk with no room is no mistake of the user's
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@chime_command(short_help="Write a commented chime.toml into this folder.")
@click.option("--force", is_flag=True, help="Replace a chime.toml that is there.")
@click.option("-o", "--output", "file", metavar="FILE", default=FILE, show_default=True, help="Write another file.")
def init(invocation: Invocation, force: bool, file: str) -> None:
    """Write a chime.toml that holds every setting with its default, its meaning and the paper's symbol."""
    path = paths.output(invocation.folder, file)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(template())
    except FileExistsError as error:
        if path.is_dir():
            raise BadInput(f"{file} is a folder; name a file") from error
        raise BadInput(f"{file} exists; --force replaces it") from error
    except OSError as error:
        if error.errno in _FULL:
            raise
        if path.is_dir():
            raise BadInput(f"{file} is a folder; name a file") from error
        advice = "go to a folder you can write, or name a file in one with -o"
        raise BadInput(f"{file} cannot be written ({error.strerror}); {advice}") from error
    invocation.output.data({"file": str(path)})
    invocation.output.line(f"wrote {file}; next: chime doctor, chime demo")
