"""The paper's experiments, one file each: what to run, what was published, and a verdict."""

from hessalign.reproduce.catalogue import EXPERIMENTS as EXPERIMENTS
from hessalign.reproduce.catalogue import SWEEP_EXPERIMENTS as SWEEP_EXPERIMENTS
from hessalign.reproduce.catalogue import reproduce as reproduce
from hessalign.reproduce.experiment import Options as Options
from hessalign.reproduce.sweep_experiment import SweepOptions as SweepOptions
from hessalign.reproduce.sweeps import reproduce_sweeps as reproduce_sweeps
