"""Every delay and limit of the simulated kubelet, with the real kubelet's values as defaults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(slots=True)
class Timings:
    """Delays in seconds.

    Paths in the comments are below ``pkg/kubelet`` of Kubernetes 1.36.2 unless they say otherwise.
    They may be changed while the kubelet runs (``kubelet.node.timings``), for what begins after that: a test keeps a
    window open for as long as it looks, and then closes it.
    """

    # Device plugins
    dial_seconds: float = (
        10.0  # cm/devicemanager/plugin/v1beta1/client.go, dial: blocking, then "context deadline exceeded"
    )
    pre_start_seconds: float = (
        30.0  # staging/.../deviceplugin/v1beta1/constants.go, KubeletPreStartContainerRPCTimeoutInSecs
    )
    endpoint_grace_seconds: float = 300.0  # cm/devicemanager/types.go, endpointStopGracePeriod
    node_status_seconds: float = 10.0  # apis/config/v1beta1/defaults.go, nodeStatusUpdateFrequency

    # Start of the process. The device manager serves before the pods of the node arrive from the API server.
    pod_source_seconds: float = 0.5  # observed: plugins back 17 ms after kubelet.sock saved every pod
    pod_spacing_seconds: float = 0.0  # between two re-admissions; what makes PodResources List partial for a while
    plugin_manager_start_seconds: float = 3.0  # observed: GetInfo 3 s after a kubelet restart
    slice_wipe_at_start_seconds: float = 0.7  # observed; cm/dra/plugin/dra_plugin_manager.go, NewDRAPluginManager

    # Containers
    restart_backoff_seconds: float = 10.0  # kubelet.go, backOffPeriod
    restart_backoff_max_seconds: float = 300.0  # kubelet.go, MaxContainerBackOff

    # Plugin watcher (pluginmanager/)
    reconcile_seconds: float = 1.0  # plugin_manager.go, loopSleepDuration
    get_info_seconds: float = 1.0  # operationexecutor/operation_generator.go, GetInfo
    notify_seconds: float = 5.0  # operationexecutor/operation_generator.go, notifyPlugin
    plugin_backoff_seconds: float = (
        0.5  # k8s.io/kubernetes/pkg/util/goroutinemap/exponentialbackoff, initialDurationBeforeRetry
    )
    plugin_backoff_max_seconds: float = 122.0  # same file, maxDurationBeforeRetry: 2 min 2 s

    # DRA manager (cm/dra/)
    dra_call_seconds: float = 45.0  # plugin/dra_plugin.go, defaultClientCallTimeout; observed by the driver: 45.0
    dra_retry_seconds: tuple[float, float] = (60.0, 90.0)  # pod_workers.go resync with jitter; observed once: 78 s
    dra_unprepare_retry_seconds: tuple[float, float] = (10.0, 15.0)  # pod_workers.go, workerBackOffPeriod with jitter
    dra_reconcile_seconds: float = 60.0  # manager.go, defaultReconcilePeriod
    slice_wipe_seconds: float = 30.0  # plugin/dra_plugin_manager.go, defaultWipingDelay; observed: 31 s
    health_retry_seconds: float = 5.0  # plugin/dra_plugin_manager.go, stream retry
    health_default_timeout_seconds: float = 30.0  # healthinfo.go, DefaultHealthTimeout

    # PodResources (apis/podresources/constants.go: DefaultQPS, DefaultBurstTokens)
    podresources_qps: float = 100.0
    podresources_burst: int = 10

    @classmethod
    def fast(cls, **changes: Any) -> Timings:
        """Return the timings of the same kubelet for tests.

        What a test would wait for is 20 to 300 times shorter; limits that peers see are not.
        """
        quick = cls(
            endpoint_grace_seconds=1.0,
            node_status_seconds=0.1,
            pod_source_seconds=0.05,
            plugin_manager_start_seconds=0.05,
            slice_wipe_at_start_seconds=0.02,
            restart_backoff_seconds=0.1,
            restart_backoff_max_seconds=1.0,
            reconcile_seconds=0.05,
            plugin_backoff_seconds=0.05,
            plugin_backoff_max_seconds=0.5,
            dra_retry_seconds=(0.2, 0.3),
            dra_unprepare_retry_seconds=(0.1, 0.15),
            dra_reconcile_seconds=0.3,
            slice_wipe_seconds=0.5,
            health_retry_seconds=0.1,
            health_default_timeout_seconds=1.0,
        )
        return replace(quick, **changes)
