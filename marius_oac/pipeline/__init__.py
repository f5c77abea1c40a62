"""Batches in flight: buffers, timestamps, validation, devices. Results have the bits of training one batch at a
time."""
