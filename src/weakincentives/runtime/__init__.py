"""State, events and transactions, which evaluations are built on. Import from the modules."""
