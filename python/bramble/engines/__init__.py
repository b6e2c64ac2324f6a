"""Clusters whose workers a running engine starts: Dask, MPI, Ray, Slurm or Kubernetes.

The primary listens, and each worker dials it. ``_opening`` makes the key and opens the cluster, ``_worker`` is the process at a
worker's host, and each other module knows one engine.
"""
