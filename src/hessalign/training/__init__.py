"""Training: one loop, its records and checkpoints, and the Colored MNIST experiment."""

from hessalign.training.colored_mnist import ColoredMnistConfig as ColoredMnistConfig
from hessalign.training.colored_mnist import Run as Run
from hessalign.training.colored_mnist import train_colored_mnist as train_colored_mnist
from hessalign.training.loop import LoopConfig as LoopConfig
from hessalign.training.loop import train as train
from hessalign.training.parallel import train_many as train_many
from hessalign.training.records import Record as Record
from hessalign.training.records import read_records as read_records
from hessalign.training.run_folder import RunFolder as RunFolder
from hessalign.training.run_folder import RunFolderError as RunFolderError
from hessalign.training.sampling import FullBatch as FullBatch
from hessalign.training.sampling import Minibatches as Minibatches
