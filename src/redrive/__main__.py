"""`python -m redrive`: the same as `redrive`."""

from __future__ import annotations

from redrive.cli import main

main()
