"""The job folder and what survives in it: checkpoints, markers, the lease, a preemption."""
