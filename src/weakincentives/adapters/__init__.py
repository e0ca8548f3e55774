"""Adapters: one inner loop and tool executor, and a codec for each provider. Import adapters from
their own modules.
"""
