"""The keyed-state facet, and the in-flight rows of crash counting."""

from __future__ import annotations

from collections.abc import Sequence

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

    def save(self, subscription: int, key: str, version: int, data: bytes, position: int) -> bool:
        """Write on top of `version`; empty data deletes. False: somebody else wrote first.

        The new version is the position of the event that writes, so that none is ever used twice.
        """
        values = {"subscription": subscription, "key": key, "version": version, "data": data, "position": position}
        if not data:
            del values["data"], values["position"]
            return version == 0 or self._sql.run("state_drop", values) == 1
        if version == 0:
            del values["version"]
            return self._sql.run("state_add", values) == 1
        return self._sql.run("state_save", values) == 1

    def save_all(self, subscription: int, states: Sequence[tuple[str, int, bytes, int]]) -> bool:
        """Many at once, each on top of its version. False: one of them moved, and nothing can be relied on."""
        fresh = [(subscription, key, position, data) for key, v, data, position in states if data and not v]
        saved = [(position, data, subscription, key, v) for key, v, data, position in states if data and v]
        dropped = [
            {"subscription": subscription, "key": key, "version": v} for key, v, data, _ in states if not data and v
        ]
        written = sum(
            self._sql.many(name, rows)
            for name, rows in (("state_add_many", fresh), ("state_save_many", saved), ("state_drop", dropped))
            if rows
        )
        return written == len(fresh) + len(saved) + len(dropped)

    # ------------------------------------------------------------ crash counting

    def run_alone(self, member: int, position: int, boot: str) -> None:
        """From here until `ran` a death of the process is charged to this event."""
        self._sql.run("inflight_start", {"member": member, "position": position, "boot": boot})

    def ran(self, member: int, position: int) -> None:
        """The event completed: its charges are forgotten."""
        self._sql.run("inflight_clear", {"member": member, "position": position})

    def excuse(self, member: int) -> None:
        """We are asked to stop: dying now is nobody's fault."""
        self._sql.run("inflight_excuse", {"member": member})
        self._sql.run("inflight_unsuspected", {"member": member})

    def forget_settled(self, member: int, subscription: int, progress: int) -> None:
        """Suspect nobody who has come to an end."""
        self._sql.run("inflight_forget", {"member": member, "subscription": subscription, "progress": progress})

    def charge(self, member: int, boot: str, *, lost: bool = False) -> dict[int, tuple[int, int]]:
        """Charge what was running when the former owner died on this boot, or `lost` its connection.

        Return the charges by position, and how many of them are for lost connections.
        """
        self._sql.run("inflight_charge", {"member": member, "boot": boot, "lost": int(lost)})
        return {
            position: (charges, lost) for position, charges, lost in self._sql.all("inflight_all", {"member": member})
        }
