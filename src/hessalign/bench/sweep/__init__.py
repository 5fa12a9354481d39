"""Sweeps: which jobs there are, what identifies each, and what has them done.

`specification` says what a sweep is, `jobs` lists its jobs, launchers have them done, `selection`
makes tables of their records.
"""

from hessalign.bench.runs.job import Job as Job
from hessalign.bench.sweep.execution import JobStatus as JobStatus
from hessalign.bench.sweep.execution import Launcher as Launcher
from hessalign.bench.sweep.execution import Outcome as Outcome
from hessalign.bench.sweep.execution import Task as Task
from hessalign.bench.sweep.execution import Work as Work
from hessalign.bench.sweep.execution import run_jobs as run_jobs
from hessalign.bench.sweep.execution import sweep_status as sweep_status
from hessalign.bench.sweep.execution import training_work as training_work
from hessalign.bench.sweep.jobs import check_jobs as check_jobs
from hessalign.bench.sweep.jobs import held_out_sets as held_out_sets
from hessalign.bench.sweep.jobs import list_jobs as list_jobs
from hessalign.bench.sweep.jobs import open_sweep as open_sweep
from hessalign.bench.sweep.jobs import sweep_jobs as sweep_jobs
from hessalign.bench.sweep.launcher import LocalLauncher as LocalLauncher
from hessalign.bench.sweep.launcher import Retries as Retries
from hessalign.bench.sweep.launcher import SerialLauncher as SerialLauncher
from hessalign.bench.sweep.progress import RunCost as RunCost
from hessalign.bench.sweep.progress import measure_cost as measure_cost
from hessalign.bench.sweep.ray_cluster import RayLauncher as RayLauncher
from hessalign.bench.sweep.slurm import SlurmLauncher as SlurmLauncher
from hessalign.bench.sweep.slurm import SlurmOptions as SlurmOptions
from hessalign.bench.sweep.specification import SweepSpec as SweepSpec
from hessalign.bench.sweep.specification import make_specification as make_specification
