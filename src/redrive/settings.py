"""Every option and every limit of the engine, by name, with the reason beside it.

`load_settings` reads built-in defaults, a TOML file, the table of the chosen profile in that file, and the
environment; later ones win, and it tells where each value came from. Nothing is guessed: an unknown key,
a value of the wrong kind and values that cannot hold together are UsageErrors that name the fix.
What a subscription promises (order, key_by, types, start, partitions) is code, never configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from redrive.errors import UsageError
from redrive.masking import mask_text
from redrive.policy.cron import check_cron
from redrive.units import address, duration, rate, show_duration, size

# Written with a unit in the file and the environment ("10s", "8KiB", "50/s"); plain numbers in the program.
Seconds = Annotated[float, "duration", Meta(gt=0)]
Lease = Annotated[float, "duration", Meta(ge=0.1)]  # shorter, and a busy machine loses what it owns for no reason
Rate = Annotated[float, "rate", Meta(gt=0)]
Bytes = Annotated[int, "size", Meta(ge=256)]
Count = Annotated[int, Meta(ge=1)]
Globs = tuple[Annotated[str, Meta(min_length=1)], ...]  # in the environment: separated by commas
Patterns = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=100)]
Reference = Annotated[str, Meta(pattern=r"^[\w.]+:[\w.]+$")]
Address = Annotated[str, "address"]  # HOST:PORT, or "off"
FileMode = Annotated[str, Meta(pattern="^0?6[0246]{2}$")]  # as chmod takes it; the owner may always read and write
Profile = Literal["development", "staging", "production"]
_NUMBERS: dict[str, Callable[[str], float]] = {"duration": duration, "rate": rate, "size": size}


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a program writes is checked where it is written: later it would look like a bug of ours."""

    def __post_init__(self) -> None:
        """What is as built in is not looked at: a test does, and to find out how would be a tenth of a start."""
        shape = type(self)
        for name, default in zip(shape.__struct_fields__, shape.__struct_defaults__, strict=True):
            value = getattr(self, name)
            if value is default or (name == "subscriptions" and value == {}):
                continue
            hint = _hints(shape)[name]
            try:
                checked = msgspec.convert(value, hint)
                if "address" in marks(hint):
                    address(value)
            except (ValueError, msgspec.ValidationError) as error:
                raise UsageError(
                    mask_text(f"{type(self).__name__}: {name}={value!r}{_advice(name, value, hint, error)}")
                ) from None
            if checked is not value:
                msgspec.structs.force_setattr(self, name, checked)


@cache
def _hints(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape, include_extras=True)


def _advice(name: str, value: Any, hint: Any, error: Exception) -> str:
    units = [number for unit, number in _NUMBERS.items() if unit in marks(hint)]
    if units and isinstance(value, str):
        with suppress(ValueError):
            return f" is a text with a unit, as for redrive.toml; here write {name}={units[0](value)}"
    return f": {error}"


def marks(hint: Any) -> Iterator[str]:
    """What a type says of its values beside its kind: `duration`, `rate`, `size`."""
    for part in (*get_args(hint), *getattr(hint, "__metadata__", ())):
        if isinstance(part, str):
            yield part
        else:
            yield from marks(part)


class RetrySettings(_Checked, frozen=True, kw_only=True):
    """Overrides of a subscription's retry rule; what is None stays as the code says."""

    attempts: Count | None = None  # calls of the function, the first one included
    wait: Seconds | None = None  # pause before the second attempt
    factor: Annotated[float, Meta(ge=1)] | None = None  # how many times longer each pause is than the one before
    wait_max: Seconds | None = None  # the longest pause
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None  # share of a pause that is left to chance, 0 to 1

    def given(self) -> dict[str, Any]:
        """The overrides that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class LetterSettings(_Checked, frozen=True, kw_only=True):
    """Overrides of the rules which failed events become dead letters; what is None stays as the code says."""

    discard: Patterns | None = None  # types, globs or /regular expressions/ whose letters are dropped; asked first
    keep: Patterns | None = None  # the same for letters that are kept; asked second
    keep_if: Reference | None = None  # MODULE:FUNCTION of the letter that answers True or False; asked last


class ReplaySettings(_Checked, frozen=True, kw_only=True):
    """Automatic replay of a subscription's dead letters; what is None stays as the code says."""

    enabled: bool | None = None  # false switches it off; true, or any of the others, on
    cron: str | None = None  # five fields, in UTC: when to replay what may have passed
    on_recovery: bool | None = None  # also when the breaker of the dependency closes again
    times: Annotated[int, Meta(ge=1, le=100)] | None = None  # automatic replays of one letter, for ever
    max_age: Seconds | None = None  # letters that died longer ago are left alone
    batch: Annotated[int, Meta(ge=1, le=1_000)] | None = None  # letters of one operation
    rate: Rate | None = None  # the most replays a second; it begins with one, and grows

    def given(self) -> dict[str, Any]:
        """The overrides that are set, by name."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}


class SubscriptionSettings(_Checked, frozen=True, kw_only=True):
    """Overrides for one subscription; what is None stays as the code says."""

    concurrency: Count | None = None  # events of different keys that run side by side
    timeout: Seconds | None = None  # how long one call of the function may take
    retry: RetrySettings = RetrySettings()
    letters: LetterSettings = LetterSettings()
    replay: ReplaySettings = ReplaySettings()


class Settings(_Checked, frozen=True, kw_only=True):
    """What the engine runs with. Durations are in seconds."""

    store: str | None = None  # path or URL of the store; a relative path starts at the working directory
    profile: Profile = "development"  # built-in defaults, and which [profiles.NAME] table is laid over the file
    lease: Lease = duration("10s")  # how long a silent owner keeps a subscription; also the longest take-over
    batch_max: Count = 2_000  # events a projection applies per transaction; more leave the processor's cache
    batch_time_max: Seconds = duration("50ms")  # how long a batch may hold the write lock; others want to write too
    window_max: Count = 1_200  # events per subscription read and not settled; more leave the processor's cache
    lane_max: Count = 100_000  # open letters per key; a full lane stops intake before it fills the disk
    poll_min: Seconds = duration("0.5ms")  # how soon to look for others' events while there are many; Postgres tells
    poll_max: Seconds = duration("50ms")  # the same when idle and nobody tells; shorter would cost a percent of a core
    busy_timeout: Seconds = duration("10s")  # how long to wait for the write lock before the store counts as busy
    operator_timeout: Seconds = duration("2m")  # how long a command tries again for the write lock before it gives up
    stop_timeout: Seconds = duration("30s")  # how long a graceful stop waits for running functions
    pool_max: Count = 10  # connections to Postgres for readers and your own transactions; the engine's own are extra
    checkpoint_pages: Count = 4_000  # pages in the write-ahead log before they are copied back; about 16 MB
    settle_max: Count = 1_000  # handler results settled per transaction; bounds how long it holds the write lock
    crash_charges_max: Count = 3  # times an event may end its worker or connection, alone, before it is buried
    retry_budget: Rate = 100.0  # retries a second on one dependency, of all workers; first attempts are not counted
    retry_budget_over: Literal["wait", "bury"] = "wait"  # what happens to retries that the budget does not cover
    retry_budget_jitter: Annotated[float, Meta(ge=0, le=10)] = 1.0  # share by which such a wait may grow, by chance
    halt_wait: Seconds = duration("1s")  # first pause of a halted subscription before it tries again; then doubled
    halt_wait_max: Seconds = duration("30s")  # longest such pause, so that it is back soon after its cause is gone
    http: Address = "127.0.0.1:9464"  # where `run` answers /metrics and health checks; this machine alone by default
    log_format: Literal["text", "json"] = "text"  # log lines for people or for machines
    error_text_max: Bytes = size("8KiB")  # how much of a message or traceback a letter keeps; some are megabytes
    redact: Globs = ("*password*", "*secret*", "*token*", "*authorization*")  # fields of payloads that are never shown
    track_memory_max: Bytes = size("64MiB")  # tracked events that wait in memory; beyond it the newest are lost
    spool: str | None = None  # folder for tracked events while the store is away; not set: beside the store's file
    spool_max: Bytes = size("100MiB")  # all spool files of a store on this machine; a full disk would harm others
    file_mode: FileMode = "0600"  # of stores and exports that are made; existing files keep theirs
    prune_cron: str | None = None  # five fields, in UTC: when a worker prunes settled letters; not set: nobody does
    prune_older_than: Seconds = duration("30d")  # how long ago those were settled that it prunes
    subscriptions: dict[str, SubscriptionSettings] = {}


# What a profile means by itself, where somebody names it. A developer wants to see a failure now; in production
# nothing is given up because of a dependency that is down, and fewer retries, spread wider, let it come back.
PROFILES: dict[str, dict[str, Any]] = {
    "development": {"retry_budget": rate("1000/s"), "retry_budget_over": "bury", "retry_budget_jitter": 0.5},
    "staging": {"retry_budget": rate("100/s"), "retry_budget_over": "wait", "retry_budget_jitter": 1.0},
    "production": {"retry_budget": rate("50/s"), "retry_budget_over": "wait", "retry_budget_jitter": 1.5},
}

_TABLES: dict[str, Any] = {
    "retry": RetrySettings,
    "letters": LetterSettings,
    "replay": ReplaySettings,
}  # of a subscription
_CODE_ONLY = ("order", "key_by", "types", "start", "partitions")
# Not options: the file itself, knobs of the test suite, and the variables that Kubernetes sets in every
# pod beside a service called "redrive".
_OTHER_VARIABLES = ("REDRIVE_CONFIG", "REDRIVE_TEST_", "REDRIVE_FAILPOINT", "REDRIVE_SERVICE_", "REDRIVE_PORT")

_NEVER_MORE_THAN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("poll_min", "poll_max", show_duration),
    ("halt_wait", "halt_wait_max", show_duration),
    ("batch_time_max", "lease", show_duration),  # an owner that works must have time to renew
    ("settle_max", "window_max", str),
    ("window_max", "lane_max", str),  # what is in memory may all have to be parked behind one key
)

_Path = tuple[str, ...]
_Found = dict[_Path, tuple[Any, str]]  # dotted option -> value, origin


def settings_path(folder: Path, environ: Mapping[str, str]) -> Path | None:
    """The file that REDRIVE_CONFIG names, else `redrive.toml` in the folder if there is one."""
    if named := environ.get("REDRIVE_CONFIG"):
        return Path(named)
    beside = folder / "redrive.toml"
    return beside if beside.exists() else None


def load_settings(path: Path | None, environ: Mapping[str, str]) -> tuple[Settings, dict[str, str]]:
    """The settings, and for each option by its dotted name where its value came from.

    >>> settings, origins = load_settings(None, {"REDRIVE_LEASE": "5s"})
    >>> settings.lease, origins["lease"], origins["batch_max"]
    (5.0, 'REDRIVE_LEASE', 'built-in')
    """
    variables = _read_environment(environ)
    in_file = {} if path is None else _read_file(path, variables)
    named, _ = (in_file | variables).get(("profile",), (None, ""))
    defaults = {} if named is None else PROFILES[named]
    built_in: _Found = {(name,): (value, f"built-in [profiles.{named}]") for name, value in defaults.items()}
    found = built_in | in_file | variables
    settings = _build({name: value for name, (value, _) in found.items()})
    origins = {name: "built-in" for name in Settings.__struct_fields__ if name != "subscriptions"}
    origins |= {".".join(name): origin for name, (_, origin) in found.items()}
    _check_together(settings, origins)
    return settings, origins


def store_named(folder: Path, environ: Mapping[str, str]) -> str | None:
    """The store that the environment or the file names, also where the rest of them cannot be taken."""
    import tomllib

    if environ.get("REDRIVE_STORE"):
        return environ["REDRIVE_STORE"]
    path = settings_path(folder, environ)
    try:
        named = None if path is None else tomllib.loads(path.read_text(encoding="utf-8")).get("store")
    except (OSError, ValueError):
        return None
    return named if isinstance(named, str) else None


def check_subscriptions(settings: Settings, known: Iterable[str]) -> None:
    """Refuse overrides for subscriptions that the program does not have."""
    names = list(known)
    for name in settings.subscriptions:
        if name not in names:
            _unknown(f"subscriptions.{name}", name, names, "settings")


def _read_environment(environ: Mapping[str, str]) -> _Found:
    found: _Found = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith("REDRIVE_") or variable.startswith(_OTHER_VARIABLES) or not text:
            continue
        table: Any = text
        for part in reversed(variable.removeprefix("REDRIVE_").lower().split("__")):
            table = {part: table}
        found |= _leaves(table, Settings, (), variable, from_text=True)
    return found


def _read_file(path: Path, variables: _Found) -> _Found:
    import tomllib  # not needed by the many programs that have no file

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the settings file {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    profiles = table.pop("profiles", {})
    found = _leaves(table, Settings, (), str(path))
    chosen, _ = (found | variables).get(("profile",), ("development", ""))
    for name, overrides in _table(profiles, ("profiles",), str(path)).items():
        origin = f"{path} [profiles.{name}]"
        if name not in get_args(Profile):
            _unknown(f"profiles.{name}", name, get_args(Profile), str(path))
        if "profile" in _table(overrides, ("profiles", name), str(path)):
            raise UsageError(f"{origin}: a profile cannot choose a profile; move `profile` to the top of the file")
        checked = _leaves(overrides, Settings, (), origin)  # also where it is not chosen: it will be one day
        found |= checked if name == chosen else {}
    return found


def _leaves(table: Any, shape: Any, above: _Path, origin: str, *, from_text: bool = False) -> _Found:
    """The values in a table, converted, under their full names."""
    found: _Found = {}
    hints = _hints(shape)
    for key, value in _table(table, above, origin).items():
        name = (*above, key)
        if key in _CODE_ONLY:
            raise UsageError(
                f"{origin}: `{'.'.join(name)}` is code-only, because it decides what is promised about past events; "
                f"remove it here and give `{key}=` where the function is registered"
            )
        if key not in hints:
            _unknown(".".join(name), key, list(hints), origin)
        if key == "subscriptions":
            for subscription, overrides in _table(value, name, origin).items():
                found |= _leaves(overrides, SubscriptionSettings, (*name, subscription), origin, from_text=from_text)
        elif key in _TABLES:
            found |= _leaves(value, _TABLES[key], name, origin, from_text=from_text)
        else:
            found[name] = (_convert(value, hints[key], name, origin, from_text), origin)
    return found


def _convert(value: Any, hint: Any, name: _Path, origin: str, from_text: bool) -> Any:
    units = set(marks(hint))
    try:
        if "duration" in units and not isinstance(value, str):
            raise ValueError(f'{value!r} has no unit; write it like "250ms", "30s" or "5m"')
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ValueError(f"expected one of {', '.join(get_args(hint))}")
        if "duration" in units:
            value = duration(value)
        if "address" in units:
            value = address(value)
        if "rate" in units:
            value = rate(value)
        if "size" in units and isinstance(value, str) and not value.isdecimal():
            value = size(value)
        if from_text and _is_list(hint):
            value = [part.strip() for part in value.split(",")]
        return msgspec.convert(value, hint, strict=not from_text)
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(mask_text(f"{origin}: `{'.'.join(name)}`: {error} (found {value!r})")) from None


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(_is_list(part) for part in get_args(hint) if get_origin(hint) is not tuple)


def _build(values: Mapping[_Path, Any]) -> Settings:
    top = {name[0]: value for name, value in values.items() if len(name) == 1}
    subscriptions = {}
    for subscription in dict.fromkeys(name[1] for name in values if name[0] == "subscriptions"):
        mine = {name[2:]: value for name, value in values.items() if name[:2] == ("subscriptions", subscription)}
        rest = {name[0]: value for name, value in mine.items() if len(name) == 1}
        for key, shape in _TABLES.items():
            rest[key] = shape(**{name[1]: value for name, value in mine.items() if name[0] == key and len(name) > 1})
        subscriptions[subscription] = SubscriptionSettings(**rest)
    return Settings(subscriptions=subscriptions, **top)


def _check_together(settings: Settings, origins: Mapping[str, str]) -> None:
    """Refuse values that are fine alone and impossible together, and a cron line that is never due."""
    if settings.prune_cron is not None:
        check_cron(settings.prune_cron, f"`prune_cron` ({origins['prune_cron']}): ")
    numbers: dict[str, Any] = msgspec.structs.asdict(settings)
    pairs = list(_NEVER_MORE_THAN)
    for name, mine in settings.subscriptions.items():
        prefix = f"subscriptions.{name}.retry."
        numbers |= {prefix + key: value for key, value in mine.retry.given().items()}
        pairs.append((f"{prefix}wait", f"{prefix}wait_max", show_duration))
    for small, large, show in pairs:
        low, high = numbers.get(small), numbers.get(large)
        if low is not None and high is not None and low > high:
            raise UsageError(
                f"`{small}` ({show(low)}, {origins[small]}) is more than `{large}` ({show(high)}, {origins[large]}); "
                f"lower the first or raise the second"
            )


def _table(value: Any, name: _Path, origin: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{origin}: `{'.'.join(name)}` is a table of options, not the value {mask_text(repr(value))}")
    return value


def _unknown(name: str, key: str, known: Iterable[str], origin: str) -> NoReturn:
    import difflib  # only ever needed on the way out

    near = difflib.get_close_matches(key, known := list(known), n=1, cutoff=0.6)
    hint = f"did you mean `{near[0]}`?" if near else f"known are: {', '.join(known)}"
    for shape, table in (
        (SubscriptionSettings, "[subscriptions.NAME]"),
        *((shape, f"[subscriptions.NAME.{name}]") for name, shape in _TABLES.items()),
    ):
        hint = f"it belongs in a table {table}" if key in shape.__struct_fields__ else hint
    raise UsageError(f"{origin}: unknown option `{name}`; {hint}")
