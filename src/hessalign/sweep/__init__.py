"""Sweeps: which jobs there are, what identifies each, and what has them done."""

from hessalign.sweep.cost import RunCost as RunCost
from hessalign.sweep.cost import measure_cost as measure_cost
from hessalign.sweep.enumeration import check_jobs as check_jobs
from hessalign.sweep.enumeration import sweep_jobs as sweep_jobs
from hessalign.sweep.execution import Outcome as Outcome
from hessalign.sweep.execution import Task as Task
from hessalign.sweep.execution import Work as Work
from hessalign.sweep.folder import open_sweep as open_sweep
from hessalign.sweep.jobs import held_out_sets as held_out_sets
from hessalign.sweep.jobs import list_jobs as list_jobs
from hessalign.sweep.launcher import Launcher as Launcher
from hessalign.sweep.launcher import Retries as Retries
from hessalign.sweep.local import LocalLauncher as LocalLauncher
from hessalign.sweep.ray_cluster import RayLauncher as RayLauncher
from hessalign.sweep.running import run_jobs as run_jobs
from hessalign.sweep.running import training_work as training_work
from hessalign.sweep.serial import SerialLauncher as SerialLauncher
from hessalign.sweep.specification import SweepSpec as SweepSpec
from hessalign.sweep.specification import make_specification as make_specification
from hessalign.sweep.status import JobStatus as JobStatus
from hessalign.sweep.status import sweep_status as sweep_status
from hessalign.training.job import Job as Job
