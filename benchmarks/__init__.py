"""How fast the closed forms are, against what others do and against the hardware.

Run `python -m benchmarks` from the root of the project. Three tables, each measured in one run on
one thread: `head` (penalties of a classifier head), `growth` (their cost against n, d, C and E) and
`cmnist` (a whole training step of Colored MNIST).
"""
