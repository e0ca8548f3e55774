"""Adapters ask providers: one inner loop for all, and a codec for each wire format.

Import adapters from their own modules.
"""
