"""Measurements, one file per row group; `python -m bench` runs them all."""
