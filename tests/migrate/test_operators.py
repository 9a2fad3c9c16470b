"""The report and a conversion know the same operators: one names what they make of limits, the other what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.cluster_objects import custom, migrate, obstacles_of, pod

MANIFESTS = Path(__file__).parent / "manifests"


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("raycluster.yaml", "KubeRay counts GPUs from limits: set num-gpus in rayStartParams"),
        ("rayjob.yaml", "KubeRay counts GPUs from limits"),
        ("rayservice.yaml", "KubeRay counts GPUs from limits"),
        ("mpijob.yaml", "mpi-operator sets slots from slotsPerWorker, not from claims"),
        ("job-training.yaml", "delete the Job and create it again"),
        ("pytorchjob.yaml", ""),
        ("jobset.yaml", ""),
    ],
)
async def test_a_conversion_says_what_to_tell_an_operator(file: str, said: str) -> None:
    words = ("--class", "nvidia.com/gpu=gpu.example.com", "--diff", str(MANIFESTS / file))
    code, _, err = await migrate("convert", *words)
    assert code == 0
    notes = [line for line in err.splitlines() if line.startswith("note: ")]
    assert len(notes) == bool(said)
    assert all(said in note for note in notes)


@pytest.mark.parametrize(
    ("api_version", "kind", "seen"),
    [
        ("ray.io/v1", "RayService", "KubeRay makes num-gpus of limits"),
        ("kubeflow.org/v2beta1", "MPIJob", "the training operator counts GPUs in limits (kubeflow/trainer#3540)"),
        ("kubeflow.org/v1", "PyTorchJob", "the training operator counts GPUs in limits (kubeflow/trainer#3540)"),
        ("nvidia.com/v1alpha1", "DynamoGraphDeployment", "Dynamo's operator counts GPUs in limits"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", "the trainer counts GPUs"),
        ("serving.kserve.io/v1beta1", "InferenceService", "KServe's model servers have limits"),
        ("serving.knative.dev/v1", "Revision", "Knative's services take no claims"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", None),
        ("nvidia.com/v1", "ClusterPolicy", None),
        ("example.com/v1", "RayCluster", None),
    ],
)
async def test_the_report_says_what_an_operator_makes_of_limits(api_version: str, kind: str, seen: str | None) -> None:
    found = await obstacles_of(pod(owner=custom(api_version, kind)))
    said = [one.seen for one in found if one.code == "OperatorCountsLimits"]
    assert len(said) == (seen is not None)
    assert all(one.startswith(seen or "") for one in said)
