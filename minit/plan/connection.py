"""Settings that the apps of a pod get from its networks, once these are there."""

from __future__ import annotations

import os

from minit.errors import PlanError
from minit.plan.environment import with_metadata_url
from minit.plan.files import resolv_conf
from minit.plan.network import Connection
from minit.plan.pod import PodPlan, metadata_url
from minit.value import replace


def connect(plan: PodPlan, connection: Connection, mds_token: str) -> PodPlan:
    """Return the plan with the name servers that the networks offer and the address of the metadata service."""
    apps = plan.apps
    if connection.resolv_conf is not None:
        text = os.fsencode(connection.resolv_conf)
        apps = tuple(replace(app, files=(*app.files, resolv_conf(app.name, text))) for app in apps)
    if mds_token:
        if connection.host_address is None:
            raise PlanError("failed to setup network: no network has an address of the host, which --mds-token needs")
        url = metadata_url(mds_token, connection.host_address)
        apps = tuple(replace(app, environment=with_metadata_url(app.environment, url)) for app in apps)
    return replace(plan, apps=apps)
