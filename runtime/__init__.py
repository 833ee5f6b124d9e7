"""One episode, played through the protocols in `ports.py`: planners, execution, reflections, gate, what is due, statistics."""
