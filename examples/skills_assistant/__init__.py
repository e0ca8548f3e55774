"""An assistant for a folder of Agent Skills that opens only the headings it needs."""
