"""How processes end: signals, kills, full disks, closed pipes."""
