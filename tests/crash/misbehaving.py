"""Functions that misbehave, each in a worker of its own."""

from __future__ import annotations
