"""Contracts: what a backend must do, as tests that it inherits. Those who write a store or a source run them on it."""

from redrive.testing.contracts.source import SourceContract
from redrive.testing.contracts.store import StoreContract

__all__ = ["SourceContract", "StoreContract"]
