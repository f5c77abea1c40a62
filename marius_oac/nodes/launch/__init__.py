"""Starts trainers on every node from one command line."""
