"""Why a job ended: what happened, the line that shows it, what to do."""
