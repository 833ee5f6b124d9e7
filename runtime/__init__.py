"""One episode, played through the protocols in `ports.py`: planners, execution, reflections, gate, schedule, statistics."""
