"""Adapters connect the engine to providers: one inner loop, and a codec for each wire format.

Import adapters from their own modules.
"""
