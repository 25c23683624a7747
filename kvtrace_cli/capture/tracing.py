"""What a traced program needs, whoever starts it: a machine that can, and an environment."""

import shlex
from collections.abc import Mapping, Sequence

from kvtrace_cli.capture.engine import let_engine_end
from kvtrace_cli.capture.injection import (
    CONFIG_VARIABLE,
    compose_environment,
    write_activity_config,
    write_injector_config,
)
from kvtrace_cli.capture.plugin import ENGINE_SITE, STEPS_VARIABLE, with_engine_plugin
from kvtrace_cli.capture.preflight import Preflight, Status, demand
from kvtrace_cli.capture.progress import Progress
from kvtrace_cli.capture.ray_environment import with_ray_workers
from kvtrace_cli.config import RecordingConfig
from kvtrace_cli.dumps.run_dir import RunDir


def demand_machine(preflight: Preflight, progress: Progress) -> None:
    """Say what was found on this machine, and refuse to start what cannot work here.

    Raises:
        ConfigError: a check failed.
    """
    for check in preflight.checks:
        say = progress.note if check.status is Status.WARN else progress.detail
        say(f"{check.status.value}: {check.name}: {check.found}")
    demand(preflight)


def traced_environment(
    base: Mapping[str, str],
    recording: RecordingConfig,
    preflight: Preflight,
    run_dir: RunDir,
    *,
    emulated: bool,
    uses_ray: bool = False,
) -> dict[str, str]:
    """Return `base` with what records into `run_dir`; its injector config is written there.

    Nothing of an outer recording stays in it: what is not recorded here is recorded nowhere. With
    `uses_ray`, the engine's workers are actors of Ray.

    Raises:
        ConfigError: see `write_injector_config`, `compose_environment` and `with_ray_workers`.
    """
    clean = {
        name: text for name, text in base.items() if name not in (CONFIG_VARIABLE, STEPS_VARIABLE)
    }
    environment, injector = clean, preflight.injector
    raw_dir = run_dir.raw.absolute()
    config_path = run_dir.injector_config.absolute()
    if injector is None:
        return environment
    if preflight.cupti_library is not None:
        write_activity_config(
            config_path, recording, raw_dir=raw_dir, cupti_library=preflight.cupti_library
        )
    elif preflight.sanitizer_library is not None:
        write_injector_config(
            config_path,
            recording,
            raw_dir=raw_dir,
            sanitizer_library=preflight.sanitizer_library,
            emulated=emulated,
        )
    else:
        return environment
    environment = compose_environment(
        environment, recording, injector=injector.path, config_path=config_path
    )
    if not emulated:
        let_engine_end(environment)
    if recording.steps:
        environment = with_engine_plugin(environment, raw_dir=raw_dir, injector=injector.path)
    if uses_ray:
        ours = [name for name, text in environment.items() if clean.get(name) != text]
        site = str(ENGINE_SITE) if recording.steps else None
        environment = with_ray_workers(environment, ours, python_path=site)
    return environment


def as_typed(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """Return what a shell takes for a command with these variables."""
    variables = (f"{name}={text}" for name, text in sorted(environment.items()))
    return shlex.join([*variables, *command])
