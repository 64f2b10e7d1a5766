"""Contracts: what a part must do, as tests that it inherits. Who writes a store, a source or a sink runs them on it."""

from redrive.testing.contracts.broker import BrokerContract
from redrive.testing.contracts.sink import SinkContract
from redrive.testing.contracts.source import SourceContract
from redrive.testing.contracts.store import StoreContract

__all__ = ["BrokerContract", "SinkContract", "SourceContract", "StoreContract"]
