"""Clusters whose workers a running engine starts; the class methods ``Cluster.from_…`` call these."""

from bramble.engines._dask import from_dask
from bramble.engines._kubernetes import from_kubernetes, manifests
from bramble.engines._mpi import from_mpi
from bramble.engines._ray import from_ray
from bramble.engines._slurm import from_slurm

__all__ = ["from_dask", "from_kubernetes", "from_mpi", "from_ray", "from_slurm", "manifests"]
