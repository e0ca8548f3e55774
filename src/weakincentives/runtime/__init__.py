"""State, events and transactions, on which an evaluation stands. Import from the modules."""
