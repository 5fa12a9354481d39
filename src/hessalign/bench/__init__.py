"""The laboratory, which stands on the library: what is trained, how, and how often.

`data` and `models` know nothing of each other; `algorithms` train a model, `runs` carry out one
job, `sweep` many, and select among them.
"""
