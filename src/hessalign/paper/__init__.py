"""The paper's experiments: what to run, what was published, and a verdict.

`catalogue` has them by name, `experiment` says what one consists of, `published` has the numbers.
"""
