"""The paper's experiments, one file each: what to run, what was published, and a verdict."""

from hessalign.paper.catalogue import EXPERIMENTS as EXPERIMENTS
from hessalign.paper.catalogue import SWEEP_EXPERIMENTS as SWEEP_EXPERIMENTS
from hessalign.paper.catalogue import reproduce as reproduce
from hessalign.paper.experiment import Options as Options
from hessalign.paper.sweep_experiment import SweepOptions as SweepOptions
from hessalign.paper.sweeps import reproduce_sweeps as reproduce_sweeps
