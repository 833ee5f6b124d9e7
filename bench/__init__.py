"""Measurements side by side, one file for each row of the table; `python -m bench` runs them all.

Apart from them: `real_model`, a demonstration with a real model (`make real-model`).
"""
