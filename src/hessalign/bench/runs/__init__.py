"""Runs: a job, its plan by a protocol, one loop, its records and checkpoints, what was trained.

`plan_job` settles a job, `train_job` trains or continues it, `in_processes` has several processes
do so together, `load_run` reads it with its data; `trained` has what needs the trained network
alone.
"""

from hessalign.bench.runs.computing import Computing as Computing
from hessalign.bench.runs.job import Job as Job
from hessalign.bench.runs.loop import LoopConfig as LoopConfig
from hessalign.bench.runs.loop import train as train
from hessalign.bench.runs.plan import plan_job as plan_job
from hessalign.bench.runs.processes import in_processes as in_processes
from hessalign.bench.runs.records import Record as Record
from hessalign.bench.runs.records import read_records as read_records
from hessalign.bench.runs.run import Run as Run
from hessalign.bench.runs.run import load_run as load_run
from hessalign.bench.runs.run import train_job as train_job
from hessalign.bench.runs.run_folder import RunFolder as RunFolder
from hessalign.bench.runs.run_folder import RunFolderError as RunFolderError
from hessalign.bench.runs.sampling import FullBatch as FullBatch
from hessalign.bench.runs.sampling import Minibatches as Minibatches
