"""State, events, transactions and the main loop: what surrounds an evaluation. Import from the
modules below.
"""
