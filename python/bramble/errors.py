"""The exceptions of Bramble. Wrong shapes are ``ValueError`` and wrong types ``TypeError``, as in NumPy."""


class BrambleError(RuntimeError):
    """A call on a cluster failed; the message names the machine or the option, and the next step."""


class Unreachable(BrambleError, ConnectionError):
    """A worker could not be reached; the message names it, the cause and the next step."""


class PartLost(BrambleError):
    """A part of a placed matrix was on a machine that is lost, and cannot be made again."""


class OutOfClusterMemory(BrambleError, MemoryError):
    """A matrix does not fit the memory that the machines have left; the message lists them."""


class ClusterClosed(BrambleError):
    """The cluster was closed, by ``close`` or at the end of its ``with`` statement."""


class ForkedProcess(BrambleError):
    """The cluster belongs to the process that this one was forked from."""


class LinAlgWarning(RuntimeWarning):
    """A solution may have no right digit: the condition number of the matrix is larger than 1 over the rounding of its type."""


class VerificationError(BrambleError):
    """A result did not pass its check, and was not kept."""
