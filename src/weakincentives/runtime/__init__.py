"""State, events and transactions, on which evaluations are built. Import from the modules."""
