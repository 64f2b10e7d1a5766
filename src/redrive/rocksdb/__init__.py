"""RocksDB: a folder for keyed state that is too large, or changes too often, for the store."""

from redrive.rocksdb.states import RocksDB

__all__ = ["RocksDB"]
