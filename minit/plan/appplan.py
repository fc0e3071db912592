"""All decisions about one app, each of the six values by the module of its subject."""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.capabilities import DEFAULT
from minit.plan.confinement import ConfinementPlan, plan_confinement
from minit.plan.lifeplan import LifePlan, plan_life
from minit.plan.loadedpod import AppInput
from minit.plan.process import ProcessPlan, plan_process
from minit.plan.refusals import refuse_unbuilt_of_app, refuse_unknown_annotations
from minit.plan.resources import ResourcePlan, plan_resources
from minit.plan.rights.isolators import Isolation
from minit.plan.storage import StoragePlan, plan_storage
from minit.plan.streams import StreamsPlan, plan_streams


class AppPlan(Value):
    """Everything decided about one app before any effect."""

    name: str
    process: ProcessPlan
    confinement: ConfinementPlan = ConfinementPlan()
    resources: ResourcePlan = ResourcePlan()
    storage: StoragePlan = StoragePlan()
    streams: StreamsPlan = StreamsPlan()
    life: LifePlan = LifePlan()

    def describe(self) -> list[str]:
        """Return the decisions as lines for --debug."""
        confinement = self.confinement
        program, *more = self.process.describe()
        ids = f"uid {confinement.uid} gid {confinement.gid} groups {list(confinement.supplementary_gids)}"
        shed = ", no_new_privs" if confinement.sheds_privileges else ""
        lines = [
            *(program, f"{ids} cwd {self.process.working_directory}{shed}", *more),
            *(*confinement.describe(), *self.streams.describe(), *self.life.describe()),
            *(*self.resources.describe(), *self.storage.describe()),
        ]
        return [f"app {self.name}: {line}" for line in lines]


def plan_app(given: AppInput, isolation: Isolation | None, *, in_kubernetes: bool = False) -> tuple[AppPlan, list[str]]:
    """
    Return the plan of an app and the warnings to show; PlanError or ManifestError for what the app cannot have.

    `isolation` is the effect of the isolators, None without any. With `in_kubernetes` the pod has the log mode
    k8s-plain.
    """
    refuse_unknown_annotations(given.runtime, given.image)
    refuse_unbuilt_of_app(given.runtime, given.app)
    streams = plan_streams(given, in_kubernetes=in_kubernetes)
    confinement, warnings = plan_confinement(given, DEFAULT if isolation is None else isolation.bounding)
    process, notes = plan_process(given, streams, confinement.uid)
    resources, more = plan_resources(given, isolation)
    plan = AppPlan(
        name=given.name,
        process=process,
        confinement=confinement,
        resources=resources,
        storage=plan_storage(
            given, has_console=streams.has_console, own_pids=process.own_pids, has_init=process.has_init
        ),
        streams=streams,
        life=plan_life(given, process, has_console=streams.has_console),
    )
    return plan, warnings + notes + more
