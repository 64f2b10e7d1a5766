"""What every test gets. Kept small: a test should show what it needs."""

from __future__ import annotations

from hypothesis import settings

# A deadline measures the machine, not the code; runs on a busy machine must not fail by chance.
settings.register_profile("redrive", deadline=None, print_blob=True)
settings.load_profile("redrive")
