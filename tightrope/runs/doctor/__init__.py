"""A look at this machine as a run would find it: what is there, whether it works, what is missing and what installs it."""

from __future__ import annotations

from collections.abc import Iterator

from ..devices import available
from . import devices, machine, packages, peers, pictures, together
from .findings import Check, Finding, findings_of
from .together import Rank


def checks(device: str = "auto", quick: bool = False) -> list[Check]:
    """All that one process can look at, in the order in which it is shown."""
    return [
        Check("versions", "tightrope", packages.own_version),
        Check("versions", "python", packages.python),
        Check("versions", "torch", packages.torch_build),
        Check("versions", "required", packages.required),
        Check("versions", "besides", packages.besides),
        Check("extras", "extras", packages.extras),
        Check("machine", "system", machine.system),
        Check("machine", "cpu", machine.processor),
        Check("machine", "memory", machine.memory),
        Check("machine", "threads", machine.threads),
        Check("machine", "variables", machine.variables),
        Check("machine", "runs", machine.disk, if_it_fails="broken"),
        Check("pictures", "videos", pictures.encoder),
        Check("pictures", "MuJoCo pictures", pictures.rendering),
        Check("devices", "gpu", devices.gpus),
        Check("devices", "between GPUs", peers.copies),
        Check("devices", "torchrun", peers.backends),
        Check("devices", "device", lambda: devices.chosen(device), if_it_fails="broken"),
        *(on_device(device, quick) if device == "auto" or available(device) else []),
    ]


def on_device(device: str, quick: bool) -> list[Check]:
    """What is tried on the device of a run."""
    return [
        Check("devices", "precision", lambda: devices.precision(device)),
        Check("devices", "CUDA graph", lambda: devices.graphs(device)),
        Check("training", "training", lambda: devices.training(device), if_it_fails="broken"),
        Check("training", "compile", lambda: devices.compiling(device, quick)),
    ]


def of_ranks() -> list[Check]:
    """What several processes look at together, on the first of them. The talk itself is had once, by whichever comes first."""
    heard: list[Rank] = []

    def ranks() -> Iterator[Finding]:
        too_many = together.crowded()
        if too_many is not None:
            yield too_many
            return
        heard.extend(together.speak())
        if heard:  # on the first rank
            yield from together.described(heard)

    def sums() -> Iterator[Finding]:
        return together.sums(heard) if heard else iter(())

    return [Check("ranks", "ranks", ranks, if_it_fails="broken"), Check("all-reduce", "all-reduce", sums)]


__all__ = ["Check", "Finding", "checks", "findings_of", "of_ranks"]
