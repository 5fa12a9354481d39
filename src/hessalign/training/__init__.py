"""Training: one loop, its schedule, its records, and the Colored MNIST experiment."""

from hessalign.training.colored_mnist import ColoredMnistConfig as ColoredMnistConfig
from hessalign.training.colored_mnist import Run as Run
from hessalign.training.colored_mnist import train_colored_mnist as train_colored_mnist
from hessalign.training.loop import DivergedError as DivergedError
from hessalign.training.parallel import train_many as train_many
from hessalign.training.records import Record as Record
from hessalign.training.schedule import PenaltySchedule as PenaltySchedule
