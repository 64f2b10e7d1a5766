"""The keyed-state facet, and the in-flight rows of crash counting."""

from __future__ import annotations

from redrive.store.sql import Sql


class Keyed:
    """State per (subscription, key), saved with a version guard."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def get(self, subscription: int, key: str) -> tuple[int, bytes]:
        """(version, encoded state); version 0 means there is none."""
        row = self._sql.one("state_get", (subscription, key))
        return (0, b"") if row is None else (row[0], row[1])

    def save(self, subscription: int, key: str, version: int, data: bytes) -> bool:
        """Write on top of `version`; empty data deletes. False: somebody else wrote first."""
        values = {"subscription": subscription, "key": key, "version": version, "data": data}
        if not data:
            del values["data"]
            return version == 0 or self._sql.run("state_drop", values) == 1
        if version == 0:
            del values["version"]
            return self._sql.run("state_add", values) == 1
        return self._sql.run("state_save", values) == 1

    # ------------------------------------------------------------ crash counting

    def run_alone(self, subscription: int, position: int, boot: str) -> None:
        """From here until `ran` a death of the process is charged to this event."""
        self._sql.run("inflight_start", {"subscription": subscription, "position": position, "boot": boot})

    def ran(self, subscription: int, position: int) -> None:
        """The event completed: its charges are forgotten."""
        self._sql.run("inflight_clear", {"subscription": subscription, "position": position})

    def excuse(self, subscription: int) -> None:
        """We are asked to stop: dying now is nobody's fault."""
        self._sql.run("inflight_excuse", {"subscription": subscription})

    def charge(self, subscription: int, boot: str) -> dict[int, int]:
        """Charge what was running when the former owner died on this boot; charges by position."""
        self._sql.run("inflight_charge", {"subscription": subscription, "boot": boot})
        return dict(self._sql.all("inflight_all", {"subscription": subscription}))
