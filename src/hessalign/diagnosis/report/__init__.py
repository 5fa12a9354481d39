"""A diagnosis as people read it: text, figures, a page, plain values."""
