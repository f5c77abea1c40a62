"""What the machine is made of, and which threads and tables belong where on it."""
