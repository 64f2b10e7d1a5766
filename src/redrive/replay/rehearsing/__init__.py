"""How a rehearsal is played: who takes part, on which stage, projections and handlers."""
