"""Data sets: MNIST at 14×14 pixels, shipped with the package, and Colored MNIST made from it.

Also the catalog of the benchmark data sets of domain generalization, and how domains are split.

Nothing is downloaded, every random choice comes from an explicit seed or generator, and nothing
here knows of models or of the layers above.
"""

from hessalign.data.catalog import DATASETS as DATASETS
from hessalign.data.catalog import DatasetInfo as DatasetInfo
from hessalign.data.catalog import Family as Family
from hessalign.data.colored_mnist import ColoredDomain as ColoredDomain
from hessalign.data.colored_mnist import ColoredMnist as ColoredMnist
from hessalign.data.colored_mnist import make_colored_mnist as make_colored_mnist
from hessalign.data.mnist14 import Mnist14 as Mnist14
from hessalign.data.mnist14 import load_mnist14 as load_mnist14
from hessalign.data.shifts import ShiftedData as ShiftedData
from hessalign.data.shifts import SyntheticDomain as SyntheticDomain
from hessalign.data.shifts import make_shifted_data as make_shifted_data
from hessalign.data.splits import Split as Split
from hessalign.data.splits import split_domain as split_domain
