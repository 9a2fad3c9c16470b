"""Real Kubernetes nodes for tests: ``python -m tests.node``.

``build`` makes the programs of a release from Go modules, once. ``cluster`` starts a control plane and nodes on this
machine. Each of them is a :class:`~tests.node.machine.Machine`: Linux namespaces with an address of their own, so that
a node has its own files, processes, network and boot id, and several clusters can run side by side.
"""
