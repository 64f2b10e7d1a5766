"""A fork: the child opens connections of its own, the parent's stay as they were."""

from __future__ import annotations

import os

from redrive import App
from redrive.testing.servers import empty


def test_a_forked_child_and_its_parent_go_on_side_by_side(postgres_store: str) -> None:
    app = App(postgres_store)
    log = app.log("orders")
    log.append("parent", 1)
    with app.reader() as tx:  # one of the pool's, too
        assert tx.execute("SELECT 1").fetchone() == (1,)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            log.append("child", 2)
            code = 0 if [event.data for event in log.read()] == [1, 2] else 2
            app.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.append("parent", 3)
    assert [event.data for event in log.read()] == [1, 2, 3]
    app.close()
    empty(postgres_store)
