"""Small graphs scheduled to optimality by CP-SAT, and how far other schedules are from that."""
