"""Copies of the letters elsewhere, which follow what happens to them: `files`, and those of `redrive.redis`."""

from redrive.mirrors.entry import Entry
from redrive.mirrors.files import files, read
from redrive.mirrors.lines import Damage
from redrive.mirrors.port import Mirror

__all__ = ["Damage", "Entry", "Mirror", "files", "read"]
