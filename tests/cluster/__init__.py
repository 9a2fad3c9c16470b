"""Tests of an installed agent, on real nodes, on any cluster that a kubeconfig leads to, and on the simulated one.

Every scenario is written once, over the Kubernetes API alone. A folder is a subject; its ``__init__`` says which. In
every test run a scenario runs on the simulated cluster. On a real one (marker ``cluster``) it runs in a namespace of
its own, on one node, on the harmless devices ``/dev/zero``, ``null``, ``full`` and ``random``. Every workload takes a
lock in a directory of the node that is named after its device: two workloads that got one device are seen, whatever the
API says.

Fixtures: ``bed`` is a node with an agent that all scenarios of a file share; after one that failed everything is taken
away and installed anew. ``three_nodes`` (in that folder) is three nodes with devices of their own. ``old_node``
(releases/test_skew.py) is a node of an earlier release than the control plane.

``make cluster`` (``python -m tests.cluster``) runs them on the cluster of ``KUBECONFIG``, else on real nodes that
``tests.node`` builds and starts, and ends. Only there scenarios stop and kill kubelet, the API server and containerd,
reboot the node, and add nodes; elsewhere those skip themselves.

``DRABRIDGE_TEST_NODE`` names the node to use (default: the first that takes pods), ``DRABRIDGE_TEST_KUBELET_RESTART`` a
shell command that restarts kubelet there, for example ``docker exec kind-control-plane systemctl restart kubelet``.

``DRABRIDGE_TEST_NODE_REBOOT`` is a shell command that reboots the node and exits with 0, for example ``docker restart
kind-control-plane`` or ``ssh NODE sudo systemctl reboot || true``. It ends everything that runs there, not only what
these tests brought: without it the scenario skips itself on clusters that are not of ``tests.node``. The node has 20
minutes to come back. The pod with limits may be refused at the boot, since kubelet can admit it before the agent's pod
has started; either outcome is asserted on.

``DRABRIDGE_TEST_LOCKS`` is the directory of the node in which workloads take their locks (default:
``/tmp/drabridge-cluster-test-locks``). Clusters whose nodes share a machine's ``/tmp`` need one each: in one
directory each takes the other's locks for a double hold.
"""
