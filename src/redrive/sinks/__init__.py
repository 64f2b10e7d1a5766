"""Somewhere events are delivered; each sink is a subscription of its own. `redrive.sinks.port` says what one is."""
