"""A candidate must compute with the weights it has now, not with those it once saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cuda_agent.errors import ContestantFailure, CudaAgentError
from cuda_agent.evaluation.handover import Staged, frozen_state
from cuda_agent.evaluation.profile import WrongOutput
from cuda_agent.evaluation.reference import Reference
from cuda_agent.problems import materialize
from cuda_agent.records import Finding

if TYPE_CHECKING:
    from cuda_agent.evaluation.entrant import Entrant
    from cuda_agent.evaluation.trial import Trial

_OTHER_SEED = 7919


def check(
    trial: Trial, entrant: Entrant, staged: Staged, names: Mapping[str, Sequence[str]]
) -> list[Finding]:
    """Verify again with other weights, then give the first ones back.

    Other weights come through load_state_dict. A candidate that prepares its weights in __init__
    does not follow that; it is built again from another seed, and passes with a remark. Raises
    WrongOutput for one that follows neither.
    """
    judge = trial.judge
    model = judge.instance.model
    if not any(p.is_floating_point() and p.numel() for p in model.parameters()):
        return []
    differ = [*names["missing"], *names["unexpected"]]
    if differ and judge.problem.kind == "live":
        raise ContestantFailure(
            "runtime_error", f"state_dict of ModelNew differs from the module's: {differ[:6]}"
        )
    remarks = []
    if differ:
        remarks.append(
            Finding("state-dict", f"names differ from the reference's: {', '.join(differ[:6])}")
        )
    elif _follows_load(trial, entrant):
        return []
    else:
        remarks.append(
            Finding(
                "weights-in-init",
                "weights are prepared in __init__ and do not follow load_state_dict afterwards",
            )
        )
    if judge.problem.kind == "live":
        raise WrongOutput(
            "B18: outputs do not follow other weights", trial.outcome.error, "B18"
        )
    _rebuild(trial, entrant, staged, loads=not differ)
    return remarks


def _follows_load(trial: Trial, entrant: Entrant) -> bool:
    """Whether the output is right after load_state_dict of perturbed parameters."""
    judge = trial.judge
    made = trial.checked[0]
    if trial.reusing and judge.other is not None:
        state, expected = judge.other
    else:
        with judge.reference.other_weights():
            state = frozen_state(judge.reference.state())
            expected = judge.reference.again(made)
        judge.other = (state, expected) if trial.reusing else None
    judge.handover.set_state(entrant.client, state, entrant.deadline_s)
    try:
        trial.check(entrant, 0, expected, entrant.run(0))
        return True
    except WrongOutput as wrong:
        trial.outcome.error = wrong.report or trial.outcome.error
        return False
    finally:
        if entrant.client.alive:
            judge.handover.set_state(entrant.client, judge.reference.state(), entrant.deadline_s)


def _rebuild(trial: Trial, entrant: Entrant, staged: Staged, loads: bool) -> None:
    """Build both from another seed, compare, and build the first again.

    `loads`: state_dict names agree. Then one that takes loaded weights before its first forward,
    and did not take them after it, has cached them.
    """
    judge = trial.judge
    try:
        instance = materialize(judge.problem, judge.instance.device, seed=_OTHER_SEED)
    except CudaAgentError:
        return
    reference = Reference(instance, judge.settings.precision)
    expected = reference.again(trial.checked[0])
    seconds = max(entrant.deadline_s, judge.settings.compile_deadline_s)
    first_s = trial.building_s(entrant)
    load: Any = judge.handover.load
    load(entrant.client, staged, reference.state(), seconds, seed=_OTHER_SEED)
    first = trial.outcome.error
    trial.check(entrant, 0, expected, entrant.run(0, seconds=first_s))
    if loads:
        load(entrant.client, staged, judge.reference.state(), seconds, seed=_OTHER_SEED)
        try:
            trial.check(entrant, 0, trial.checked[0], entrant.run(0, seconds=first_s))
        except WrongOutput:
            pass  # prepared in __init__, as the remark says
        else:
            raise WrongOutput(
                "B18: weights are kept from the first forward, and new ones ignored", rule="B18"
            )
    load(entrant.client, staged, judge.reference.state(), seconds)
    trial.outcome.error = first
