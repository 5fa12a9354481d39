"""Training objectives, one file each; `ALGORITHMS` is the table of them all.

Adding one costs a file with a frozen config and a final class, and a row in `registry.py`.
"""

from hessalign.algorithms.objective import Objective as Objective
from hessalign.algorithms.objective import ObjectiveTerms as ObjectiveTerms
from hessalign.algorithms.registry import ALGORITHMS as ALGORITHMS
from hessalign.algorithms.registry import AlgorithmInfo as AlgorithmInfo
from hessalign.algorithms.registry import find_algorithm as find_algorithm
from hessalign.algorithms.registry import make_objective as make_objective
