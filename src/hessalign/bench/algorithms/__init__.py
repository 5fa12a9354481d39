"""Training algorithms; `ALGORITHMS` is the table of them all.

Adding one costs a class, with its formula and its options, and a row in `registry.py`;
one of your own needs no row, see `find_algorithm`.
"""

from hessalign.bench.algorithms.kinds import MAIN as MAIN
from hessalign.bench.algorithms.kinds import AbstractAlgorithm as AbstractAlgorithm
from hessalign.bench.algorithms.kinds import AbstractGradientRule as AbstractGradientRule
from hessalign.bench.algorithms.kinds import AbstractObjective as AbstractObjective
from hessalign.bench.algorithms.kinds import AbstractStepOwner as AbstractStepOwner
from hessalign.bench.algorithms.kinds import Batch as Batch
from hessalign.bench.algorithms.kinds import DivergedError as DivergedError
from hessalign.bench.algorithms.kinds import NoOptions as NoOptions
from hessalign.bench.algorithms.kinds import ObjectiveTerms as ObjectiveTerms
from hessalign.bench.algorithms.kinds import OptimizerSpec as OptimizerSpec
from hessalign.bench.algorithms.kinds import Setting as Setting
from hessalign.bench.algorithms.kinds import Step as Step
from hessalign.bench.algorithms.kinds import Terms as Terms
from hessalign.bench.algorithms.options import Choice as Choice
from hessalign.bench.algorithms.options import Count as Count
from hessalign.bench.algorithms.options import Fixed as Fixed
from hessalign.bench.algorithms.options import NonNegative as NonNegative
from hessalign.bench.algorithms.options import Options as Options
from hessalign.bench.algorithms.options import PenaltySchedule as PenaltySchedule
from hessalign.bench.algorithms.options import Power as Power
from hessalign.bench.algorithms.options import Range as Range
from hessalign.bench.algorithms.options import SearchSpace as SearchSpace
from hessalign.bench.algorithms.options import Share as Share
from hessalign.bench.algorithms.options import Uniform as Uniform
from hessalign.bench.algorithms.options import Whole as Whole
from hessalign.bench.algorithms.registry import ALGORITHMS as ALGORITHMS
from hessalign.bench.algorithms.registry import AlgorithmInfo as AlgorithmInfo
from hessalign.bench.algorithms.registry import algorithm_names as algorithm_names
from hessalign.bench.algorithms.registry import find_algorithm as find_algorithm
from hessalign.bench.algorithms.registry import make_algorithm as make_algorithm
from hessalign.bench.algorithms.registry import make_config as make_config
