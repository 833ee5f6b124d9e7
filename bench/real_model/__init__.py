"""A real model on this machine: llama.cpp's own server for wire tests, and `make real-model`, a demonstration.

Nothing of this is installed with Chime. The packages with engine and weights are pinned by hash in `llama.lock` and
`weights.lock`, and live in an environment of their own.
"""
