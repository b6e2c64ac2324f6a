"""Workers as pods of Kubernetes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import Any
from urllib.parse import urlsplit

from bramble.engines._opening import Launch, Opening, towards

_MANIFESTS = """\
apiVersion: v1
kind: Secret
metadata:
  name: {name}
  labels: {labels}
type: Opaque
stringData:
  key: {key}
---
# Gives each worker a name; no traffic passes through it.
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels: {labels}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {labels}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}
  labels: {labels}
spec:
  serviceName: {name}
  replicas: {workers}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {labels}
  template:
    metadata:
      labels: {labels}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 5
      # One worker a node.
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels: {labels}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: worker
          image: {image}
          command: {command}
          env:
            - name: BRAMBLE_KEY
              valueFrom:
                secretKeyRef:
                  name: {name}
                  key: key
          resources: {resources}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop: [ALL]
"""


def manifests(
    name: str,
    workers: int,
    image: str,
    join: str,
    key: str,
    *,
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
) -> str:
    """A Secret with the key, a headless Service and a StatefulSet of workers that dial ``join``, as YAML.

    ``image`` has the command ``python`` and this package, in the version of the primary. ``worker_threads`` and
    ``worker_memory`` (``"4G"``, as for Bramble: powers of 1024) are requested for the pods and are their limits; a worker uses
    three quarters of the memory. The pods run as a user without rights, and write nothing.
    """
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", name):
        raise ValueError(f"name={name!r}: small letters, digits and hyphens, as in 'bramble-1'")
    amounts = {
        **({"cpu": str(worker_threads)} if worker_threads is not None else {}),
        **({"memory": _quantity(worker_memory)} if worker_memory is not None else {}),
    }
    threads = [] if worker_threads is None else ["--threads", str(worker_threads)]
    return _MANIFESTS.format(
        name=name,
        workers=int(workers),
        labels=json.dumps({"app.kubernetes.io/name": "bramble-worker", "app.kubernetes.io/instance": name}),
        key=json.dumps(key),
        image=json.dumps(image),
        command=json.dumps(["python", "-m", "bramble", "worker", "--join", join, "--no-pin", *threads]),
        resources=json.dumps({"requests": amounts, "limits": amounts} if amounts else {}),
    )


def from_kubernetes(
    cls: Any,
    workers: int,
    image: str,
    *,
    namespace: str | None = None,
    address: str | None = None,
    timeout: str = "5m",
    worker_threads: int | None = None,
    worker_memory: str | int | None = None,
    kubectl: str = "kubectl",
    **options: Any,
) -> Any:
    """Opens a cluster with pods of Kubernetes as workers, one a node, by ``kubectl``.

    Parameters
    ----------
    workers : int
        Number of pods; at most as many as there are nodes.
    image : str
        Image with the command ``python`` and this package, in the same version as here.
    namespace : str, optional
        By default that of kubectl's context.
    address : str, optional
        What the pods dial to reach this process: ``"HOST"`` or ``"HOST:PORT"``. By default this machine's (or this pod's) address
        on the way to the Kubernetes API, and a free port.
    timeout : str
        How long to wait for the pods, including the download of the image.
    worker_threads, worker_memory : optional
        Of each worker: requests and limits of its pod (see ``manifests``).
    kubectl : str
        The program.
    **options
        As for ``bramble.Cluster``.

    What starts: a Secret, a headless Service and a StatefulSet with a name of their own, ``bramble-…``.

    Security: the cluster has a key of its own. kubectl gets it by stdin and sends it to the API over TLS; it lies in the Secret,
    which everyone may read who may read Secrets of the namespace, and in the environment of the pods. It opens this cluster only.

    How it ends: a helper process of this machine deletes the three objects when the cluster is closed, or this process dies, even
    killed. It cannot if the whole machine or pod of this process goes away: then the pods stay, and dial in vain, until
    ``kubectl delete statefulset,service,secret -l app.kubernetes.io/name=bramble-worker``.

    Raises ``BrambleError`` if kubectl is missing or refuses, and ``Unreachable`` if pods did not connect.

    Not run so far: a real Kubernetes. Tests check the manifests against the published models of its API, and run the commands of
    the manifests as processes, with a stand-in for kubectl.
    """
    opening = Opening("from_kubernetes", workers, timeout)
    if not shutil.which(kubectl):
        raise opening.failed(f"there is no program {kubectl}; install kubectl, or say kubectl='PATH'")
    ask = [kubectl, *(["--namespace", namespace] if namespace else [])]
    opening.dial(address, None if address else _own_address(ask))
    amounts: dict[str, Any] = {"worker_threads": worker_threads, "worker_memory": worker_memory}
    text = manifests(opening.name, workers, image, opening.join, opening.key, **amounts)
    return opening.open(cls, options, _Objects(opening, ask, text))


class _Objects(Launch):
    """The objects at the API, and the process that deletes them."""

    def __init__(self, opening: Opening, ask: list[str], text: str) -> None:
        self._opening, self._ask, self._text = opening, ask, text
        kinds = (f"{kind}/{opening.name}" for kind in ("statefulset", "service", "secret"))
        # The stdin of the helper ends with this process, whatever becomes of it.
        delete = [*ask, "delete", *kinds, "--ignore-not-found", "--wait=false"]
        self._helper = subprocess.Popen(
            ["sh", "-c", 'cat > /dev/null; exec "$0" "$@"', *delete],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def go(self) -> None:
        # Not apply: it would keep a second copy of the key in an annotation.
        made = subprocess.run([*self._ask, "create", "-f", "-"], input=self._text, capture_output=True, text=True)
        if made.returncode:
            raise self._opening.failed(f"kubectl create: {made.stderr.strip()}")

    def end(self) -> None:
        assert self._helper.stdin is not None
        self._helper.stdin.close()
        self._helper.wait()

    def hint(self) -> str:
        pods = [*self._ask, "get", "pods", "-l", f"app.kubernetes.io/instance={self._opening.name}", "--no-headers"]
        shown = subprocess.run(pods, capture_output=True, text=True, timeout=20).stdout.splitlines()
        return "; ".join(" ".join(line.split()) for line in shown if "Running" not in line)[:300]


def _own_address(ask: list[str]) -> str | None:
    """The address of this machine, or pod, on the way to the API; None if that is on this machine alone."""
    server = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not server:
        view = [*ask, "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]
        shown = subprocess.run(view, capture_output=True, text=True)
        server = urlsplit(shown.stdout.strip()).hostname
    found = towards([server]) if server else None
    return None if found is None or found.startswith("127.") or found == "::1" else found


def _quantity(memory: str | int) -> str:
    """A size of Bramble as a quantity of Kubernetes: there, 4G are powers of 1000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:I?B)?", str(memory).upper())
    if not found:
        raise ValueError(f"worker_memory={memory!r}: use a number with K, M, G or T, as in '4G'")
    return f"{found[1]}{found[2]}i" if found[2] else found[1]
