"""Job queues: inside their jobs `quiet()` is on, so that a failed `track` never makes a job run twice."""
