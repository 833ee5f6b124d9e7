"""How a peer talks: one JSON request a line on stdin, one JSON answer a line on stdout."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer requests until stdin ends. What a library prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line))) + "\n")
        out.flush()
