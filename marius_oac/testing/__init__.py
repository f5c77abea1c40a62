"""Suites that a user's own parts must pass. Each raises AssertionError that says what is wrong; none needs pytest."""
