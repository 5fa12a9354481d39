"""Jobs on Colored MNIST, small unless asked otherwise."""

import json

from hessalign.bench.algorithms import find_algorithm
from hessalign.bench.data.catalog import COLORED_MNIST
from hessalign.bench.runs import Job

TINY = {"train_images": 200, "test_images": 60, "jump": 2, "width": 8}


def colored_job(algorithm="erm", *, seed=0, steps=4, test=(2,), **options):
    recorded = find_algorithm(algorithm).recorded
    hparams = json.dumps({**TINY, **options}, sort_keys=True)
    return Job(COLORED_MNIST, recorded, test, 0, seed, "", steps=steps, hparams=hparams)
