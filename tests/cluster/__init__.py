"""Tests of an installed agent, against any cluster that a kubeconfig leads to, and against the simulated one.

Every scenario is written once, over the Kubernetes API alone. Without a cluster it runs on the simulated one, in every
test run. With one, it runs there as well (marker ``cluster``), in a namespace of its own, on one node, on the harmless
devices ``/dev/zero``, ``null``, ``full`` and ``random``. Every workload takes a lock in a directory of the host that is
named after its device: two workloads that got one device are seen, whatever the API says.

``make cluster`` (``python -m tests.cluster``) runs them on the cluster of ``KUBECONFIG``, else on a node that it starts
by the program that ``DRABRIDGE_TEST_CONTROL`` names, and ends. With such a program scenarios stop and kill kubelet, the
API server and containerd; without it those skip themselves. On kind, in two commands, after ``podman build -f
deploy/image/Containerfile -t localhost/drabridge:test .`` and with any image that has ``sh`` and ``flock`` (Debian's
busybox has no ``flock``)::

    kind create cluster && kind load docker-image localhost/drabridge:test busybox:stable
    KUBECONFIG=~/.kube/config DRABRIDGE_TEST_IMAGE=localhost/drabridge:test DRABRIDGE_TEST_BUSYBOX=busybox:stable \
      make cluster

``DRABRIDGE_TEST_NODE`` names the node to use (default: the first that takes pods), ``DRABRIDGE_TEST_KUBELET_RESTART`` a
shell command that restarts kubelet there, for example ``docker exec kind-control-plane systemctl restart kubelet``.

``DRABRIDGE_TEST_NODE_REBOOT`` is a shell command that reboots the node and exits with 0, for example ``docker restart
kind-control-plane`` or ``ssh NODE sudo systemctl reboot || true``. It ends everything that runs there, not only what
these tests brought: without it the scenario skips itself. The node has 20 minutes to come back. The pod with limits may
be refused at the boot, since kubelet can admit it before the agent's pod has started; either outcome is asserted on.

``DRABRIDGE_TEST_LOCKS`` is the directory of the node in which workloads take their locks (default:
``/tmp/drabridge-cluster-test-locks``). Clusters whose nodes share a machine's ``/tmp`` need one each: in one
directory each takes the other's locks for a double hold.

One agent serves all scenarios of a file. After one that failed everything is taken away and installed anew.
"""
