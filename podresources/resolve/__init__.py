"""Find what kubelet does not say of a held device: its UUID and PCI address, its pod's UID, its share.

Kubelet names a claim's device ``driver/pool/device`` only, which joins with no exporter's labels. The rest is on the
node:

- ``agent``: drabridge's status document, on the agent's unix socket (:mod:`podresources.resolve.agent`);
- ``cdi``: the claim's CDI file, of any driver; for a MIG instance with limits, the vendor's file
  (:mod:`podresources.resolve.cdi`);
- ``metadata``: the claim's metadata file of KEP-5304 (:mod:`podresources.resolve.metadata`);
- ``slices``: the node's ResourceSlices, from the API server, only if asked for (:mod:`podresources.resolve.slices`);
- ``id``: kubelet's own id of a device with limits, which is a UUID or a PCI address with most plugins;
- ``host``: ``/proc`` and sysfs, which complete what the others say (:mod:`podresources.resolve.hardware`).

The pod's UID is in kubelet's checkpoints (:mod:`podresources.resolve.checkpoints`), in the agent's document, and in the
names of the folders of logs (:mod:`podresources.resolve.pod_uids`).

Sources are asked in this order (for limits, ``id`` comes before ``cdi``), and the first that knows a field wins; a
source that says something else is shown as a conflict. Everything that is read here was written by others: sizes are
limited, and only regular files are read.
"""
