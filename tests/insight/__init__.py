"""Tests of the wing that looks at runs."""
