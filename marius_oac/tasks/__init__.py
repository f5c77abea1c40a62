"""What can be trained: one folder per task, each with `task`, `build`, `memory` and `trained`. `graph`, `trained` and
`encoder` hold what several tasks share."""
