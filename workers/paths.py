"""Paths as people write them: relative to a folder, with a home folder as `~`."""

from pathlib import Path

from events.errors import BadInput


def at(folder: Path, shown: str) -> Path:
    """`shown`, relative to `folder`.

    Raises:
        BadInput: a `~name` of nobody's, or a name that no file can have.
    """
    try:
        path = folder / Path(shown).expanduser()
    except RuntimeError as error:
        raise BadInput(f"{shown}: no home folder of that name; write the path out") from error
    if "\0" in shown:
        raise BadInput(f"{shown!r}: a path cannot hold a null character")
    return path


def output(folder: Path, shown: str) -> Path:
    """The file or folder to be written that the user calls `shown`.

    Raises:
        BadInput: as `at`, or the folder that is to hold it is not there.
    """
    path = at(folder, shown)
    if not path.parent.is_dir():
        raise BadInput(f"{shown}: there is no folder {path.parent}; make it first")
    return path
