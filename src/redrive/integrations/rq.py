"""RQ: `quiet()` inside every job, and what it tracked is stored, or on the disk, before its process ends.

    rq worker --job-class redrive.integrations.rq.QuietJob

or `Worker(queues, job_class=QuietJob)`. A job that must fail with its event says so itself: `with redrive.strict():`.
"""

from __future__ import annotations

from typing import Any

from rq.job import Job

from redrive.tracking.modes import quiet
from redrive.tracking.tracker import settle_all


class QuietJob(Job):
    """A job that does not fail because an event could not be recorded."""

    def perform(self) -> Any:
        """Run the function."""
        try:
            with quiet():
                return super().perform()
        finally:
            settle_all()  # RQ runs a job in a process that ends without its exit handlers
