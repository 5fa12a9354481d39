"""Training: one loop, its records and checkpoints, and the Colored MNIST experiment."""

from hessalign.bench.runs.colored_mnist import ColoredMnistConfig as ColoredMnistConfig
from hessalign.bench.runs.colored_mnist import Run as Run
from hessalign.bench.runs.colored_mnist import train_colored_mnist as train_colored_mnist
from hessalign.bench.runs.loop import LoopConfig as LoopConfig
from hessalign.bench.runs.loop import train as train
from hessalign.bench.runs.parallel import train_many as train_many
from hessalign.bench.runs.records import Record as Record
from hessalign.bench.runs.records import read_records as read_records
from hessalign.bench.runs.run_folder import RunFolder as RunFolder
from hessalign.bench.runs.run_folder import RunFolderError as RunFolderError
from hessalign.bench.runs.sampling import FullBatch as FullBatch
from hessalign.bench.runs.sampling import Minibatches as Minibatches
