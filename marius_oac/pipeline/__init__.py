"""Batches in flight: buffers, timestamps, validation, devices. It has the bits of a batch at a time."""
