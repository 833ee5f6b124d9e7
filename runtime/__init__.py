"""One episode, played through the protocols in `ports.py`: planner, executor, gate, schedule, statistics."""
