"""RocksDB: a folder beside the store, for many small keyed states that change often."""

from redrive.rocksdb.states import RocksDB

__all__ = ["RocksDB"]
