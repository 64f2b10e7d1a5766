"""`redrive status` and `redrive verify`: where everything stands, and whether it adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.attention import check_option, report_needs
from redrive.cli.program import opened, reads
from redrive.cli.progress import progress, quiet_option
from redrive.cli.render import block, emit_json, moment, plain, plural, say, table

if TYPE_CHECKING:
    from redrive.replay.chain import AuditVerdict
    from redrive.replay.ledger import Verdict
    from redrive.replay.status import SubscriptionStatus

POSITIONS_SHOWN = 12
SHOWN_BY_STATUS = ("dead letters", "halted", "standby")  # in its table, and below it


@click.command()
@check_option
@reads
def status(check: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Position, lag, letters and owner of every subscription.

    `oldest` is the age of the oldest event that is not applied: pending, or held in a letter. Letters that only wait
    behind another of their key are `waiting`.

    With --check only what needs an operator is told, and the exit code is 4 if anything does.
    """
    from redrive.cli.scheduled import backlog_lines
    from redrive.replay.attention import attention
    from redrive.replay.scheduled import backlog
    from redrive.replay.status import fullest_lanes

    with opened(store, program) as app:
        operations = app.operate()
        found, now = operations.status(), operations.operator.now()
        needs = attention(operations.operator.store, operations.operator.env, found)
        lane_max, budget = app.runtime.settings.lane_max, app.runtime.settings.retry_budget
        with operations.operator.store.reading() as tx:
            full = fullest_lanes(tx, lane_max)
        scheduled = backlog_lines(backlog(operations.operator.store, now), now)
    if check:
        return report_needs(needs, as_json)
    if as_json:
        emit_json([_status(one, [lane for name, lane, _ in full if name == one.subscription]) for one in found])
        return 0
    if not found:
        click.echo("no subscriptions yet; `redrive run MODULE:APP` registers them")
        for line in scheduled:
            block(plain(line), "")
        return 0
    rows = [
        (one.subscription, one.state, one.position, one.lag_events, _age(one.oldest_seconds), one.applied,
         one.retrying, one.waiting, one.dead)
        for one in found
    ]  # fmt: skip
    columns = (
        "subscription", "state", ">position", ">lag", ">oldest", ">applied", ">retrying", ">waiting", ">dead"
    )  # fmt: skip
    table(columns, rows, keep=("subscription", "state"), drop=("position", "applied"))
    for one in found:
        _show_more(one)
    for need in needs:
        if need.check not in SHOWN_BY_STATUS:
            block(f"{plain(need.message)}; {plain(need.advice)}", "")
    if any(one.retrying and one.kind == "handler" for one in found):
        block(f"retries and replays of handlers: at most {budget:g} a second on one dependency (retry_budget)", "")
    for lane in full:
        block(f"{plain(lane.told(lane_max))}; {plain(lane.remedy)}", "")
    for line in scheduled:
        block(plain(line), "")
    return 0


def _show_more(one: SubscriptionStatus) -> None:
    """What the table has no column for."""
    from redrive.clock import short_name

    if one.halted is not None:
        block(f"{plain(one.subscription)} is halted: {plain(one.halted)}", "")
    if one.holds:
        say(f"{one.subscription}: {plural(one.holds, 'hold')} of keys; `redrive hold {one.subscription}` lists them")
    if one.rebuilding_until is not None:
        by = "" if one.reserved_by is None else f" by {plain(short_name(one.reserved_by))}"
        block(f"{plain(one.subscription)} is being rebuilt{by} up to position {one.rebuilding_until}", "")
    for worker, reason in one.not_run_by:
        if reason != one.halted:
            block(f"{plain(worker)} does not run {plain(one.subscription)}: {plain(reason)}", "")


@click.command()
@click.option("--audit", is_flag=True, help="Check the hash chain of the audit too: is any row changed or gone?")
@quiet_option
@reads
def verify(audit: bool, quiet: bool, store: str | None, program: str | None, as_json: bool) -> int:
    """Account for every event: applied, open, discarded, ignored or pending, once each.

    Exit code 3 if something does not add up. With --app, order is checked where only the program knows the keys.
    """
    with opened(store, program) as app:
        with progress("verify", "checks", quiet=quiet or as_json) as show:
            verdicts = app.operate().verify(show)
        chain = app.operate().verify_audit() if audit else None
        writers = app.operate().foreign_writers()
    if as_json:
        accounts = [_verdict(one) for one in verdicts]
        emit_json(accounts if chain is None else {"subscriptions": accounts, "audit": _verdict(chain)})
    else:
        _show_verdicts(verdicts)
        if chain is not None:
            told = f"{plural(chain.rows, 'row')}, each fits the one before it" if chain.sound else chain.message
            click.echo()
            block(f"audit: {plain(told)}", "")
        if writers:
            from redrive.replay import foreign

            click.echo()
            block(f"not checked: {plain(foreign.told(writers))}", "")
    return 0 if all(one.sound for one in verdicts) and (chain is None or chain.sound) else 3


def _age(seconds: float) -> str:
    from redrive.units import show_duration

    return show_duration(round(seconds, 1)) if seconds >= 1 else ""


def _status(one: SubscriptionStatus, full: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    fields = asdict(one)
    times = {name: moment(fields[name]) for name in ("lease_until", "last_time", "settled_at")}
    not_run_by = [{"worker": worker, "reason": reason} for worker, reason in one.not_run_by]
    return {
        "subscription": one.subscription, "state": one.state, **fields, **times, "not_run_by": not_run_by,
        "full_lanes": full,
    }  # fmt: skip


def _verdict(one: Verdict | AuditVerdict) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "sound": one.sound}


def _show_verdicts(verdicts: list[Verdict]) -> None:
    if not verdicts:
        click.echo("no subscriptions yet: nothing to account for")
        return
    rows = [
        (
            one.subscription, one.applied, one.retrying, one.waiting, one.dead, one.discarded, one.ignored,
            one.pending, "sound" if one.sound else plural(len(one.violations), "violation"),
        )
        for one in verdicts
    ]  # fmt: skip
    counts = ("applied", "retrying", "waiting", "dead", "discarded", "ignored", "pending")
    columns = ("subscription", *(f">{name}" for name in counts), "verdict")
    table(columns, rows, keep=("subscription", "verdict"), empty=("waiting", "discarded", "ignored"))
    for one in verdicts:
        for violation in one.violations:
            click.echo()
            block(f"{plain(one.subscription)}: {violation.rule}: {plain(violation.message)}", "")
            if violation.positions:
                shown = ", ".join(str(position) for position in violation.positions[:POSITIONS_SHOWN])
                more = ", …" if len(violation.positions) > POSITIONS_SHOWN else ""
                block(f"at position {shown}{more}")
