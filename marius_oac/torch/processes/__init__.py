"""The engine in a user's own loop over several processes: each has a part of every table's rows."""
