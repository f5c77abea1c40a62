"""Messages between trainers and shard servers: the contract, an implementation over ZeroMQ, and one in a process."""
