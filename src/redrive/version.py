"""Which redrive this is: alone here, so that every layer may say it."""

VERSION = "0.1.0"
