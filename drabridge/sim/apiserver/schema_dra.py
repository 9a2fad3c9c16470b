"""The schema of ``resource.k8s.io/v1`` (storage version), as of Kubernetes 1.36."""

from __future__ import annotations

from drabridge.sim.apiserver.schema import (
    BOOL,
    CONDITIONS,
    INT,
    METADATA,
    OPAQUE,
    QUANTITY,
    STRING,
    Schema,
    atomic,
    gated,
    keyed,
    kind,
    listed,
    mapping,
    struct,
)

TOLERATIONS = "DRADeviceTaints of claims"
"""The gate DRADeviceTaints for fields of claims, where it has no effect in some releases (``drops_tolerations``)."""

_NODE_SELECTOR = atomic(
    struct(
        nodeSelectorTerms=listed(
            struct(
                matchExpressions=listed(struct(key=STRING, operator=STRING, values=listed(STRING))),
                matchFields=listed(struct(key=STRING, operator=STRING, values=listed(STRING))),
            )
        )
    )
)
_ATTRIBUTE = struct(
    int=INT,
    bool=BOOL,
    string=STRING,
    version=STRING,
    **gated(
        "DRAListTypeAttributes",
        ints=listed(INT),
        bools=listed(BOOL),
        strings=listed(STRING),
        versions=listed(STRING),
    ),
)
_CAPACITY = struct(
    value=QUANTITY,
    **gated(
        "DRAConsumableCapacity",
        requestPolicy=struct(
            default=QUANTITY,
            validValues=listed(QUANTITY),
            validRange=struct(min=QUANTITY, max=QUANTITY, step=QUANTITY),
        ),
    ),
)
_COUNTERS = mapping(struct(value=QUANTITY))
_TAINT = struct(key=STRING, value=STRING, effect=STRING, timeAdded=STRING)
_TOLERATION = struct(key=STRING, operator=STRING, value=STRING, effect=STRING, tolerationSeconds=INT)

DEVICE_FIELDS: dict[str, Schema] = {
    "attributes": mapping(_ATTRIBUTE),
    "capacity": mapping(_CAPACITY),
    **gated(
        "DRAPartitionableDevices",
        consumesCounters=listed(struct(counterSet=STRING, counters=_COUNTERS)),
        nodeName=STRING,
        nodeSelector=_NODE_SELECTOR,
        allNodes=BOOL,
    ),
    **gated("DRADeviceTaints", taints=listed(_TAINT)),
    **gated(
        "DRADeviceBindingConditions",
        bindsToNode=BOOL,
        bindingConditions=listed(STRING),
        bindingFailureConditions=listed(STRING),
    ),
    **gated("DRAConsumableCapacity", allowMultipleAllocations=BOOL),
    "nodeAllocatableResourceMappings": mapping(OPAQUE),
}
RESOURCE_SLICE = kind(
    spec=struct(
        driver=STRING,
        pool=struct(name=STRING, generation=INT, resourceSliceCount=INT),
        nodeName=STRING,
        nodeSelector=_NODE_SELECTOR,
        allNodes=BOOL,
        devices=listed(struct(name=STRING, **DEVICE_FIELDS)),
        **gated(
            "DRAPartitionableDevices",
            perDeviceNodeSelection=BOOL,
            sharedCounters=listed(struct(name=STRING, counters=_COUNTERS)),
        ),
    )
)

DEVICE_TAINT_RULE = kind(
    spec=struct(deviceSelector=struct(driver=STRING, pool=STRING, device=STRING), taint=_TAINT),
    status=struct(conditions=CONDITIONS),
)

_SELECTORS = listed(struct(cel=struct(expression=STRING)))
_ANY_REQUEST = {
    "deviceClassName": STRING,
    "selectors": _SELECTORS,
    "allocationMode": STRING,
    "count": INT,
    **gated(TOLERATIONS, tolerations=listed(_TOLERATION)),
    **gated("DRAConsumableCapacity", capacity=struct(requests=mapping(QUANTITY))),
}
EXACT_FIELDS: dict[str, Schema] = _ANY_REQUEST | gated("DRAAdminAccess", adminAccess=BOOL)
_OPAQUE_CONFIG = struct(driver=STRING, parameters=OPAQUE)
_CLAIM_SPEC = struct(
    devices=struct(
        requests=listed(
            struct(
                name=STRING,
                exactly=struct(**EXACT_FIELDS),
                **gated("DRAPrioritizedList", firstAvailable=listed(struct(name=STRING, **_ANY_REQUEST))),
            )
        ),
        constraints=listed(struct(requests=listed(STRING), matchAttribute=STRING, distinctAttribute=STRING)),
        config=listed(struct(requests=listed(STRING), opaque=_OPAQUE_CONFIG)),
    )
)
_RESULT = struct(
    request=STRING,
    driver=STRING,
    pool=STRING,
    device=STRING,
    **gated("DRAAdminAccess", adminAccess=BOOL),
    **gated(TOLERATIONS, tolerations=listed(_TOLERATION)),
    **gated(
        "DRADeviceBindingConditions",
        bindingConditions=listed(STRING),
        bindingFailureConditions=listed(STRING),
    ),
    **gated("DRAConsumableCapacity", shareID=STRING, consumedCapacity=mapping(QUANTITY)),
)
_ALLOCATION = struct(
    devices=struct(
        results=listed(_RESULT),
        config=listed(struct(source=STRING, requests=listed(STRING), opaque=_OPAQUE_CONFIG)),
    ),
    nodeSelector=_NODE_SELECTOR,
    allocationTimestamp=STRING,
)
_DEVICE_STATUS = struct(
    driver=STRING,
    pool=STRING,
    device=STRING,
    shareID=STRING,
    conditions=CONDITIONS,
    data=OPAQUE,
    networkData=struct(interfaceName=STRING, ips=listed(STRING), hardwareAddress=STRING),
)
RESOURCE_CLAIM = kind(
    spec=_CLAIM_SPEC,
    status=struct(
        allocation=_ALLOCATION,
        reservedFor=keyed(struct(apiGroup=STRING, resource=STRING, name=STRING, uid=STRING), "uid"),
        **gated("DRAResourceClaimDeviceStatus", devices=keyed(_DEVICE_STATUS, "driver", "device", "pool", "shareID")),
    ),
)
RESOURCE_CLAIM_TEMPLATE = kind(spec=struct(metadata=METADATA, spec=_CLAIM_SPEC))
DEVICE_CLASS = kind(
    spec=struct(
        selectors=_SELECTORS,
        config=listed(struct(opaque=_OPAQUE_CONFIG)),
        **gated("DRAExtendedResource", extendedResourceName=STRING),
    )
)
