"""What every run has: the contract of a task, session, loop, folder, checkpoints, memory plan, reporting."""
