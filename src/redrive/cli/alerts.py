"""`redrive alerts` and `redrive dashboard`: the files for Prometheus and Grafana, out of the package."""

from __future__ import annotations

from importlib.resources import files

import click


@click.command()
def alerts() -> None:
    """Print alert rules for Prometheus.

    `redrive alerts > redrive-alerts.yml`, and name the file under `rule_files` in prometheus.yml. Needs no store.
    """
    click.echo(_shipped("redrive-alerts.yml"), nl=False)


@click.command()
def dashboard() -> None:
    """Print a dashboard for Grafana.

    `redrive dashboard > redrive.json`, and import the file in Grafana. Needs no store.
    """
    click.echo(_shipped("redrive-dashboard.json"), nl=False)


def _shipped(name: str) -> str:
    return files("redrive.observe").joinpath(name).read_text(encoding="utf-8")
