"""Messages between trainers and shard servers: the contract, over ZeroMQ, and in one process."""
