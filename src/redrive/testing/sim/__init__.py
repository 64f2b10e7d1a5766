"""The parts of the simulator: a world with faults, a workload, an operator, and the checks."""
