"""What a user waits for."""
