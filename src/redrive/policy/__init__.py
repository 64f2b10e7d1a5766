"""The decisions of redrive, as pure functions over small values.

Nothing here waits, writes, logs, reads a clock or throws dice: `now` and `dice` are arguments,
and what should happen is returned as an `Action` for the runner to perform. That is what lets
the same code be tested by properties, run in the simulator, and read as the specification.

    outcome ──▶ decide(retry, conflicts, rules) ──▶ action
"""
