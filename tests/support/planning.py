"""An app as planning gets it, of a pod that has nothing else."""

from __future__ import annotations

from minit.manifest.app import App
from minit.manifest.image import ImageManifest
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.appplan import AppPlan, plan_app
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.loadedpod import AppInput, Pod, PodInput

FLAGS = RunFlags(uuid="6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11")
RUNTIME = RuntimeApp(name="web")
APP = App(exec=("/bin/app", "-v"), user="0", group="0")


def app_input(
    runtime: RuntimeApp = RUNTIME,
    app: App = APP,
    flags: RunFlags = FLAGS,
    manifest: PodManifest | None = None,
    terminal_type: str | None = None,
) -> AppInput:
    """Return an app of a pod that is alone in it, unless there is a manifest."""
    facts = HostFacts(effective_uid=0, kernel_release="6.1.0", has_cgroups=True, terminal_type=terminal_type)
    image = ImageManifest(ac_version="0.8.11", name="example.com/web", app=app)
    manifest = manifest or PodManifest(ac_version="0.8.11", apps=(runtime,))
    pod = PodInput(loaded=Pod(manifest=manifest, images=((runtime.name, image),)), flags=flags, facts=facts)
    return AppInput(pod=pod, runtime=runtime, app=app, image=image)


def plan_one(
    runtime: RuntimeApp = RUNTIME, app: App = APP, flags: RunFlags = FLAGS, terminal_type: str | None = None
) -> tuple[AppPlan, list[str]]:
    """Return the plan of an app that is alone in its pod, and the warnings to show."""
    return plan_app(app_input(runtime, app, flags, terminal_type=terminal_type), None)
