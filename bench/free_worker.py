"""A worker whose model and environment cost nothing: `python -m bench.free_worker ENGINE act --slots 16`.

ENGINE is one of `ENGINES`. With `--fork` it is rq's own worker, which forks a process for each job.
"""

import os
import sys

from rq import Worker

from bench.free import BareEngine, FreeEngine, HoldingEngine, freed
from infra.rq_keys import rq_connection, rq_queue
from workers.__main__ import main

ENGINES = {"whole": FreeEngine, "bare": BareEngine, "holding": HoldingEngine}


def fork_worker() -> None:
    """Rq's worker on the act queue, configured as ours are: by `CHIME_*`."""
    connection = rq_connection(os.environ["CHIME_REDIS_URL"], os.environ["CHIME_REDIS_PREFIX"])
    Worker([rq_queue("act", connection)], connection=connection, serializer="json").work(logging_level="ERROR")


if __name__ == "__main__":
    freed(ENGINES[sys.argv[1]])
    if "--fork" in sys.argv:
        fork_worker()
        sys.exit(0)
    sys.argv = ["chime", "worker", *sys.argv[2:]]
    sys.exit(main())
