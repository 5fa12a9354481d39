"""Training algorithms, one file each; `ALGORITHMS` is the table of them all.

Adding one costs a file with a frozen config and a final class, and a row in `registry.py`.
"""

from hessalign.algorithms.kinds import MAIN as MAIN
from hessalign.algorithms.kinds import AbstractAlgorithm as AbstractAlgorithm
from hessalign.algorithms.kinds import AbstractGradientRule as AbstractGradientRule
from hessalign.algorithms.kinds import AbstractObjective as AbstractObjective
from hessalign.algorithms.kinds import AbstractStepOwner as AbstractStepOwner
from hessalign.algorithms.kinds import OptimizerSpec as OptimizerSpec
from hessalign.algorithms.kinds import Setting as Setting
from hessalign.algorithms.registry import ALGORITHMS as ALGORITHMS
from hessalign.algorithms.registry import AlgorithmInfo as AlgorithmInfo
from hessalign.algorithms.registry import find_algorithm as find_algorithm
from hessalign.algorithms.registry import make_algorithm as make_algorithm
from hessalign.algorithms.registry import make_config as make_config
from hessalign.algorithms.schedule import PenaltySchedule as PenaltySchedule
from hessalign.algorithms.step import Batch as Batch
from hessalign.algorithms.step import DivergedError as DivergedError
from hessalign.algorithms.step import ObjectiveTerms as ObjectiveTerms
from hessalign.algorithms.step import Step as Step
