"""What is trained on top of an encoder beside link prediction."""
