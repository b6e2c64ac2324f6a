"""Clusters whose workers a running engine starts: Dask, MPI, Ray, Slurm or Kubernetes.

The primary listens, and each worker dials it. ``_opening`` makes the key and opens the cluster, ``_worker`` is the process at a
worker's host, and each other module knows one engine. All of them run on Linux.
"""

from bramble.engines._dask import from_dask
from bramble.engines._kubernetes import from_kubernetes, manifests
from bramble.engines._mpi import from_mpi
from bramble.engines._ray import from_ray
from bramble.engines._slurm import from_slurm

__all__ = ["from_dask", "from_kubernetes", "from_mpi", "from_ray", "from_slurm", "manifests"]
