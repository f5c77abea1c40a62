"""An encoder and its neighbourhoods, for both tasks on graphs."""
