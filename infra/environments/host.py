"""The child side of the environment protocol: one JSON object a line on stdin, one answer a line on stdout.

Run by path, next to a benchmark file, by any Python from 3.10 on; it imports nothing but the standard library and
the benchmark: `python host.py [--oracle] FILE.py[:Class]` (class `Benchmark` where none is named). The class has
`describe()`, `tasks(domain, split)`, `reset(episode_id, domain, task_id, seed, options)`, `step(action)`,
`evaluate()`, and where it wants `close()` and `oracle(domain, task_id)`; all take and return plain JSON data.
With `--oracle`, for tests only, the host also answers `oracle` and `fault` (`{"in": op, "kind": ...}` spoils the next
`op`: `raise` an exception, `print` noise, answer with a `huge` line).

Only the protocol's lines reach the original stdout: a benchmark's prints go to stderr, and its stdin is empty. The
end of stdin is the end of the host, also in the middle of an operation: nothing outlives the client.
"""

import importlib.util
import json
import os
import queue
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROTOCOL = 1
#: size of the padding of a planted huge answer, characters
HUGE = 8 << 20
#: what an operation in progress gets to end by itself once the client is gone, seconds
GRACE_S = 1.0

_SURROGATE = re.compile("[\ud800-\udfff]")


class Refused(Exception):
    """An operation that is not allowed now; `kind` is the word the client sees."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


class Operations:
    """The operations over one benchmark object, with the order the protocol asks for: reset, steps, one evaluate."""

    def __init__(self, benchmark: Any, *, oracle: bool) -> None:
        self._benchmark = benchmark
        self._oracle = oracle
        self._playing = False
        #: operation -> how its next answer is spoilt
        self._faults: dict[str, str] = {}
        self.closed = False

    def result(self, request: dict[str, Any]) -> Any:
        """The result of one request, with the fault planted for it, if there is one. Raises: as `answer`."""
        fault = self._faults.pop(str(request.get("op")), None)
        if fault == "raise":
            raise RuntimeError("a planted fault")
        if fault == "print":
            print("noise " * 100)
            os.write(1, b"more noise\n")
        answer = self.answer(request)
        return {**answer, "padding": "x" * HUGE} if fault == "huge" else answer

    def answer(self, request: dict[str, Any]) -> Any:
        """The result of one request.

        Raises:
            Refused: an unknown operation, or one out of order.
            Exception: whatever the benchmark raises.
        """
        match request.get("op"):
            case "describe":
                return {**self._benchmark.describe(), "protocol": PROTOCOL, "concurrent": False, "pid": os.getpid()}
            case "tasks":
                return self._benchmark.tasks(request.get("domain"), request.get("split"))
            case "reset":
                return self._reset(request)
            case "step":
                self._expect_episode("step")
                return self._benchmark.step(request["action"])
            case "evaluate":
                self._expect_episode("evaluate")
                self._playing = False
                return self._benchmark.evaluate()
            case "close":
                self.close()
                return {}
            case "oracle" | "fault":
                return self._test(request)
            case op:
                raise Refused("unknown_op", f"{op!r} is no operation of protocol {PROTOCOL}")

    def close(self) -> None:
        """Let the benchmark end what it holds; once."""
        if not self.closed:
            self.closed = True
            close = getattr(self._benchmark, "close", None)
            if close is not None:
                close()

    def _reset(self, request: dict[str, Any]) -> Any:
        self._playing = False
        opening = self._benchmark.reset(
            request["episode_id"],
            request["domain"],
            request["task_id"],
            request.get("seed", 0),
            request.get("options") or {},
        )
        self._playing = True
        return opening

    def _test(self, request: dict[str, Any]) -> Any:
        """The operations that only a host started with --oracle has."""
        if not self._oracle:
            raise Refused("refused", "this host was not started with --oracle")
        if request["op"] == "fault":
            self._faults[request["in"]] = request["kind"]
            return {}
        if not hasattr(self._benchmark, "oracle"):
            raise Refused("refused", "this benchmark offers no reference solutions")
        return self._benchmark.oracle(request["domain"], request["task_id"])

    def _expect_episode(self, op: str) -> None:
        if not self._playing:
            raise Refused("no_episode", f"{op} without a reset before it")


def benchmark_at(spec: str) -> Any:
    """An object of the class that `FILE.py[:Class]` names."""
    file, _, name = spec.partition(":")
    path = Path(file).resolve()
    # a benchmark can import its neighbours, but they come last: none of them (gym.py, install.py) hides a package
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != here] + [str(path.parent)]
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    if module_spec is None or module_spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[path.stem] = module
    module_spec.loader.exec_module(module)
    return getattr(module, name or "Benchmark")()


def error(problem: BaseException) -> dict[str, Any]:
    """What the client is told about an exception."""
    kind = getattr(problem, "kind", None)
    return {
        "kind": kind if isinstance(kind, str) else type(problem).__name__,
        "message": str(problem) or type(problem).__name__,
        "retryable": bool(getattr(problem, "retryable", False)),
    }


def encoded(answer: dict[str, Any]) -> bytes:
    """One line; lone surrogates become U+FFFD.

    Raises:
        TypeError, ValueError: something in it is no JSON.
    """
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub("\ufffd", text).encode() + b"\n"


def reply(operations: Operations, line: bytes) -> bytes:
    """The answer line to a request line, whatever happens inside."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as problem:
        request = str(problem)
    if not isinstance(request, dict):
        malformed = {"kind": "malformed", "message": f"no JSON object: {request}"[:200], "retryable": False}
        return encoded({"id": None, "ok": False, "error": malformed})
    try:
        return encoded({"id": request.get("id"), "ok": True, "result": operations.result(request)})
    except Exception as problem:  # noqa: BLE001 - the outermost loop: the client decides what a benchmark's error means
        if not isinstance(problem, Refused):
            traceback.print_exc()
        return encoded({"id": request.get("id"), "ok": False, "error": error(problem)})


def end_group() -> None:
    """End this process and all that the benchmark started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def read_lines(fd: int, arrived: Callable[[bytes | None], None]) -> None:
    """Hand every line of `fd` over, then None; ends the process if it is still there a moment after that."""
    parts: list[bytes] = []
    while chunk := os.read(fd, 1 << 16):
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            arrived(b"".join([*parts, piece]))
            parts = []
        parts.append(rest)
    arrived(None)
    time.sleep(GRACE_S)
    end_group()


def write_all(fd: int, line: bytes) -> None:
    """Write `line` whole; a client that is gone ends the process."""
    view = memoryview(line)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except BrokenPipeError:
        end_group()


def main(arguments: list[str]) -> None:
    """Serve until `close` or the end of stdin."""
    oracle = "--oracle" in arguments
    specs = [argument for argument in arguments if argument != "--oracle"]
    if len(specs) != 1:
        raise SystemExit("usage: host.py [--oracle] FILE.py[:Class]")
    requests_fd, answers_fd = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, by its portable name
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=read_lines, args=(requests_fd, lines.put), daemon=True).start()
    operations = Operations(benchmark_at(specs[0]), oracle=oracle)
    while not operations.closed and (line := lines.get()) is not None:
        if line.strip():
            write_all(answers_fd, reply(operations, line))
            sys.stdout.flush()
    if operations.closed:
        os._exit(0)
    operations.close()
    end_group()


if __name__ == "__main__":
    main(sys.argv[1:])
