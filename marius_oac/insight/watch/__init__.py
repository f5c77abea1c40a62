"""`marius-oac watch`: a run as it trains, in the terminal or as a page.

live    the run's history as it grows
screen  the run in the terminal
watch   the command, and the page that is written again and again

All of it reads in a process of its own; the run is not told, and nothing listens.
"""
