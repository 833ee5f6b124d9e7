"""The home: the folder of the embedded server's data, blobs and environments. Made when it is needed."""

import os
from pathlib import Path

from events.errors import BadInput


def opened(home: Path) -> Path:
    """`home`, made private where it is missing.

    Raises:
        BadInput: it is a file, or cannot be made, or cannot be written; says what to set.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise BadInput(f"home {home} is a file; move it, or name another folder with --home or CHIME_HOME") from error
    except OSError as error:
        raise BadInput(
            f"home {home} cannot be made ({error.strerror}); name a folder you can write with --home or CHIME_HOME"
        ) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise BadInput(f"home {home} is read-only; name a folder you can write with --home or CHIME_HOME")
    return home
