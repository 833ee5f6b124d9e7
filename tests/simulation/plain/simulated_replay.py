"""Prints the fingerprints of worlds: `python simulated_replay.py SEED ...`, for comparing what two processes play."""

import sys

from simulated_parts import quick, world_of

if __name__ == "__main__":
    with quick():
        for seed in sys.argv[1:]:
            print(world_of(int(seed)).fingerprint())  # noqa: T201 - what it is for
