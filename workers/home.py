"""The home: the folder of the embedded server's data, blobs and environments. Made when it is needed."""

import tempfile
from pathlib import Path

from events.errors import BadInput

#: what every complaint about a home ends with
_ADVICE = "name a folder you can write with --home or CHIME_HOME"


def fault(home: Path) -> str | None:
    """Why `home` cannot be made or written, or None: a folder is made in it, or where it would be, and removed.

    What the permissions say is not enough: a file system may be read-only, full, or none that holds files.
    """
    there = home
    try:
        while not there.exists():
            if there.is_symlink():
                return f"{there} is a link to {there.readlink()}, which is not there"
            there = there.parent
        if not there.is_dir():
            return f"{there} is a file"
        Path(tempfile.mkdtemp(prefix=".chime-", dir=there)).rmdir()
    except ValueError as error:  # a null byte
        return f"{str(home)!r} is no path ({error})"
    except PermissionError:
        return f"{there} is read-only"
    except OSError as error:
        return f"{there} cannot be written ({error.strerror})"
    return None


def opened(home: Path) -> Path:
    """`home`, made private where it is missing.

    Raises:
        BadInput: it is a file, or cannot be made, or cannot be written; says what to set.
    """
    if (wrong := fault(home)) is not None:
        raise BadInput(f"home {home} cannot be used: {wrong}; {_ADVICE}")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"home {home} cannot be made ({error.strerror}); {_ADVICE}") from error
    return home
