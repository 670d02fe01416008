"""Programs that name their step, for the bench `pairs`. Each runs in an environment of its own."""
