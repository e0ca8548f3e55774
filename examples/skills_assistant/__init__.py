"""An assistant over a folder of Agent Skills, which opens only the headings that it needs."""
