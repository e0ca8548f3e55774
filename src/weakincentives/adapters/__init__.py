"""Adapters connect the inner loop to model providers; each API has its own codec.

Import adapters from their own modules.
"""
