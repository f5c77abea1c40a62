"""`marius-oac watch`: a run as it trains, in the browser or in the terminal.

tail    the lines of `metrics.jsonl` as they come
live    the run's history as it grows
server  the page of the run on the loopback interface
screen  the run in the terminal

All of it reads in a process of its own; the run is not told.
"""
