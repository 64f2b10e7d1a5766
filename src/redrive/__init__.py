"""Every event applied exactly once and in key order, or kept, shown, and sent round again."""

from __future__ import annotations

__version__ = "0.1.0"
