"""Measurements side by side, one file for each row of the table; `python -m bench` runs them all."""
