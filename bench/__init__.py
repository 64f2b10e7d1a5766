"""Measurements of redrive beside a hand-written loop and other libraries: `python -m bench`.

Only ratios of one round are meant to be compared: machines differ, and so does one machine from minute to minute.
"""
