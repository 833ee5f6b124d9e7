"""The `eventsourcing` library rebuilding one aggregate from the payloads of one of our logs, in SQLite or in memory.

An event's attributes are the payload as plain JSON types, which the library's own transcoder reads; the aggregate keeps
the last one of each kind. So it is spared what our replay does beyond decoding: typed values, the fold.
"""

import json
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from serving import serve


class Run(Aggregate):
    """A run."""

    @event("Started")
    def __init__(self, name: str) -> None:
        self.name = name
        self.last: dict[str, Any] = {}

    @event("Happened")
    def happened(self, kind: str, stream: str, number: int, data: dict[str, Any]) -> None:
        """One event of our log."""
        del stream, number
        self.last[kind] = data


class Peer:
    """One application and its one aggregate."""

    def __init__(self) -> None:
        self.application: Application[Any] | None = None
        self.id: Any = None

    def answer(self, request: dict[str, Any]) -> Any:
        """`open` an application, `load` a file of export lines, `rebuild` the aggregate."""
        match request["do"]:
            case "open":
                environment = {"PERSISTENCE_MODULE": "eventsourcing.popo"}
                if request["sqlite"]:
                    environment = {
                        "PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": request["sqlite"]
                    }  # fmt: skip
                self.application = Application(env=environment)
            case "load":
                return self._load(request["path"])
            case "rebuild":
                assert self.application is not None
                return self.application.repository.get(self.id).version
        return None

    def _load(self, path: str) -> int:
        assert self.application is not None
        run = Run("bench")
        self.id = run.id
        with open(path, "rb") as lines:  # noqa: PTH123 - one idiom is enough here
            for number, line in enumerate(lines):
                one = json.loads(line)
                run.happened(one["kind"], one["stream"], one["version"], one["data"])
                if number % 500 == 0:
                    self.application.save(run)
        self.application.save(run)
        return run.version


if __name__ == "__main__":
    serve(Peer().answer)
