"""Bramble: one machine for matrix multiplication out of many small ones.

``bramble.matmul`` multiplies arrays in this process. ``bramble.Cluster`` opens a cluster, on which matrices stay placed:

    with bramble.Cluster("pi[1-8]") as c:
        W = c.put(w)          # spread over the workers, by their speed
        y = x @ W             # an array goes in, an array comes back
        H = W.T @ W           # stays at the workers
        H.numpy()

Importing the package starts no thread, and needs no cluster.
"""

from bramble._array import DistArray, Part
from bramble._cluster import Cluster, Node
from bramble._matmul import matmul
from bramble._placement import Replicate, Shard
from bramble._report import Plan, Report
from bramble._solve import LU, lu, solve
from bramble.errors import (
    BrambleError,
    ClusterClosed,
    ForkedProcess,
    LinAlgWarning,
    OutOfClusterMemory,
    PartLost,
    Unreachable,
    VerificationError,
)

__all__ = [
    "BrambleError",
    "Cluster",
    "ClusterClosed",
    "DistArray",
    "ForkedProcess",
    "LU",
    "LinAlgWarning",
    "Node",
    "OutOfClusterMemory",
    "Part",
    "PartLost",
    "Plan",
    "Replicate",
    "Report",
    "Shard",
    "Unreachable",
    "VerificationError",
    "lu",
    "matmul",
    "solve",
]
__version__ = "0.1.0"
