"""List the operators that make something of device limits: the report warns of them, a conversion says what to do.

Each was reported to its project, or is in its source.
"""

from __future__ import annotations

from msgspec import Struct


class CountingOperator(Struct, frozen=True):
    """Custom resources whose operator looks at limits, or knows no claims. ``kinds``: how their names begin.

    ``seen``: what it makes of limits. ``after``: what to tell it once they are claims; "" where nothing can be told.
    """

    group: str
    kinds: str
    seen: str
    after: str = ""


_TRAINING = "the training operator counts GPUs in limits (kubeflow/trainer#3540)"
_OPERATORS = (  # the first row that fits
    CountingOperator(
        "kubeflow.org",
        "MPIJob",
        _TRAINING,
        "mpi-operator sets slots from slotsPerWorker, not from claims: see that it says the number of devices",
    ),
    CountingOperator("kubeflow.org", "", _TRAINING),
    CountingOperator("trainer.kubeflow.org", "", "the trainer counts GPUs in limits (kubeflow/trainer#3540)"),
    CountingOperator("nvidia.com", "Dynamo", "Dynamo's operator counts GPUs in limits (ai-dynamo/dynamo#12164)"),
    CountingOperator(
        "ray.io",
        "Ray",
        "KubeRay makes num-gpus of limits",
        "KubeRay counts GPUs from limits: set num-gpus in rayStartParams of this group",
    ),
    CountingOperator("serving.kserve.io", "", "KServe's model servers have limits, and no claims (kserve#5294)"),
    CountingOperator("serving.knative.dev", "", "Knative's services take no claims (knative/serving#15332)"),
)


def counting_operator(group: str, kind: str) -> CountingOperator | None:
    """Return the row of a custom resource; None where its operator does not care about limits."""
    return next((one for one in _OPERATORS if one.group == group and kind.startswith(one.kinds)), None)
