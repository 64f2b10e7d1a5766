"""Writes the tables of options in docs/guide/settings.md: names, defaults and reasons are those of redrive.settings.

    python scripts/write_settings.py            write the page
    python scripts/write_settings.py --check    exit 1 if the page is not current

What stands around the tables is written by hand, in the page.
"""

from __future__ import annotations

import json
import re
import sys
from ast import literal_eval
from pathlib import Path

from redrive import settings

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "settings.md"
OPTION = re.compile(r"^    (\w+): (.+?) = (.+?)  # (.+)$", re.MULTILINE)
WITH_UNIT = re.compile(r'\w+\((".+")\)')  # duration("10s"), size("8KiB")
TABLE = r"\| option \|{}.*\|\n\|[-|]+\|\n(?:\|.*\n)+"
HEAD = "| option | default | what it is, and why |\n|---|---|---|\n"
HEAD_OF_ONE = "| option | what it is |\n|---|---|\n"


def options(struct: type) -> list[tuple[str, str, str]]:
    """Name, default and reason of each option, in the order of the code."""
    source = Path(settings.__file__).read_text(encoding="utf-8")
    body = source[source.index(f"class {struct.__name__}(") :].split("\n\n\n")[0]
    found = [(name, shown(kind, default), why) for name, kind, default, why in OPTION.findall(body)]
    tables = {*settings._TABLES, "subscriptions"}
    if {name for name, _, _ in found} != set(struct.__struct_fields__) - tables:  # type: ignore[attr-defined]
        raise SystemExit(f"an option of {struct.__name__} has no reason beside it")
    return found


def shown(kind: str, default: str) -> str:
    """A default as redrive.toml would have it."""
    if unit := WITH_UNIT.fullmatch(default):
        return f"`{unit[1]}`"
    if default == "None":
        return "not set"
    if kind == "Rate":
        return f'`"{literal_eval(default):g}/s"`'
    return f"`{json.dumps(literal_eval(default))}`" if default.startswith("(") else f"`{default}`"


def page() -> str:
    """The page with its tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    rows = "".join(f"| `{name}` | {default} | {why} |\n" for name, default, why in options(settings.Settings))
    mine = [(name, why) for name, _, why in options(settings.SubscriptionSettings)]
    for table, struct in settings._TABLES.items():
        mine += [(f"{table}.{name}", why) for name, _, why in options(struct)]
    rows_of_one = "".join(f"| `{name}` | {why} |\n" for name, why in mine)
    text = re.sub(TABLE.format(" default "), lambda _: HEAD + rows, text, count=1)
    return re.sub(TABLE.format(" what it is "), lambda _: HEAD_OF_ONE + rows_of_one, text, count=1)


def main() -> int:
    """Write the page, or only look whether it would change."""
    made = page()
    if "--check" in sys.argv[1:]:
        return int(made != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
