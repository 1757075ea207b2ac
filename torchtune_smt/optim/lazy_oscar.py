"""FOBOS with OSCAR, exact and lazy."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtune_smt.core.accepts import behaves_as
from torchtune_smt.core.arrays import Float64
from torchtune_smt.core.errors import DivergenceError
from torchtune_smt.optim import oscar_kernels
from torchtune_smt.optim.fobos import FOBOS
from torchtune_smt.optim.oscar_kernels import BUILD, DIMENSION, DONE, WEIGHT
from torchtune_smt.optim.oscar_structure import OscarStructure
from torchtune_smt.optim.row_kernels import RowSteps
from torchtune_smt.optim.sparse import SCHEDULES, rate
from torchtune_smt.optim.state import Group, Kept, State
from torchtune_smt.regularizers.base import dimension_error
from torchtune_smt.regularizers.oscar import Oscar


class FobosOscar(FOBOS):
    """`FOBOS` with `Oscar`, at a cost of O(k log u) a step (Liu et al., 2013, Algorithm 2).

    The iterates are those of `FOBOS` (w -= η_t · g; w = prox of Ω with step η_{t+1}, where
    η_t = lr · t^-p), to rounding, for k touched coordinates and u weights that are not 0, whatever
    D and d are. OSCAR's proximal steps add up: prox_{bΩ}(prox_{aΩ}(w)) = prox_{(a+b)Ω}(w). So
    between two gradient steps groups of equal |w| move on straight lines towards 0, meet and stay
    together, and what none of the steps touches has not to be looked at: its groups are kept in
    order, with the times at which neighbours meet. A step takes coordinates out of their groups,
    and puts each back as a group of one.

    params: vectors of float64 or float32, on the CPU. What groups are at is kept in float64: a
        float32 weight is rounded when it is read.
    average: "none" or "epoch". Weights that nobody looks at move on, meet and die between steps,
        and what each of them adds up to is not kept.
    """

    @torch.no_grad()
    def groups(self, parameter: Tensor | None = None) -> Tensor:
        """Bring all weights up to date, and return which of them are equal.

        Membership comes from the structure itself, in which weights that have met have one value.

        Returns int64 tensor [D]: as `Oscar.groups`; -1, too, for weights that are not regularised.
        """
        group, parameter = self._find(parameter)
        state = self._prepared(group, parameter)
        weight = parameter.detach().numpy()
        structure = self._structure(group, weight, state)
        self._flush(group, parameter, state)
        self._behind.pop(parameter, None)
        return torch.from_numpy(structure.signed_blocks(weight))

    def _has_loop(self, group: Group) -> bool:
        return True

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if group["average"] == "step":
            raise ValueError(
                "average=step: FobosOscar does not know what each weight has been after each step; "
                "use average=epoch, or FOBOS (optimizer=fobos), which is much slower"
            )
        if not behaves_as(group["regularizer"], Oscar, "value", "prox"):
            given = group["regularizer"]
            name = "no regularizer" if given is None else type(given).__name__
            raise ValueError(
                f"FobosOscar keeps OSCAR's groups, and got {name}: use regularizer=oscar, or FOBOS "
                "(optimizer=fobos) instead of FobosOscar"
            )
        for parameter in group["params"]:
            known = parameter.dtype in (torch.float64, torch.float32)
            if not known or parameter.device.type != "cpu":
                raise ValueError(
                    "FobosOscar works on parameters of torch.float64 or float32 on the CPU, not of "
                    f"{parameter.dtype} on {parameter.device}: use FOBOS (optimizer=fobos) instead"
                )

    def _kept(self, group: Group) -> Kept:
        return {"step": 0, **self._kept_sums(group)}

    def _restored(self, entry: State, group: Group, parameter: Tensor) -> tuple[Group, State]:
        plain = {name: value for name, value in entry.items() if name != "structure"}
        pending, state = super()._restored(plain, group, parameter)
        if "structure" in entry:
            state["structure"] = OscarStructure.from_tensors(entry["structure"], parameter.numel())
        return pending, state

    def _update(
        self, group: Group, parameter: Tensor, state: State, indices: Tensor, gradient: Tensor
    ) -> None:
        weight = parameter.detach().numpy()
        structure = self._structure(group, weight, state)
        structure.make_room(indices.numel())
        t = state["step"] + 1
        dimension, lr = _dimension(group, weight), rate(group["lr"], group["schedule"], t)
        if parameter.dtype != torch.float64:
            # The kernel's numbers are float64, and what is infinite is so only when it is kept.
            self._catch_up(group, parameter, state, indices)
            moved = parameter.index_select(0, indices).add(gradient, alpha=-lr)
            _check(DONE if moved.isfinite().all() else WEIGHT, "the step", dimension)
        why = oscar_kernels.step(
            structure.tree,
            weight,
            indices.numpy(),
            gradient.numpy(),
            lr,
            rate(group["lr"], group["schedule"], t + 1),
            group["unregularized"],
            dimension,
        )
        _check(why, "the step", dimension)
        state["step"] = t

    def _catch_up(self, settings: Group, parameter: Tensor, state: State, indices: Tensor) -> None:
        if (structure := state.get("structure")) is not None:
            structure.lengthen(parameter.numel())
            first = settings["unregularized"]
            weight = parameter.detach().numpy()
            oscar_kernels.catch_up(structure.tree, weight, indices.numpy(), first)

    def _flush(self, group: Group, parameter: Tensor, state: State) -> None:
        if "structure" in state:
            state.pop("structure").write(parameter.detach().numpy())

    def _update_rows(
        self, group: Group, weight: Float64, state: State, steps: RowSteps, first: int
    ) -> int:
        structure = self._structure(group, weight, state)
        dimension = _dimension(group, weight)
        done, why = oscar_kernels.rows(
            structure.tree,
            weight,
            state["step"],
            steps,
            (float(group["lr"]), SCHEDULES[group["schedule"]]),
            group["unregularized"],
            dimension,
            first,
        )
        if done < steps.order.size:
            row = int(steps.order[done])
            if why == BUILD:
                structure.make_room(int(steps.row_begin[row + 1] - steps.row_begin[row]))
            elif done == first:
                # Once the steps before it are counted.
                _check(why, f"row {row}", dimension)
        return int(done)

    def _structure(self, group: Group, weight: Float64, state: State) -> OscarStructure:
        """Return the structure, a new one where others may have changed the weights."""
        if "structure" not in state:
            oscar, first = group["regularizer"], group["unregularized"]
            state["structure"] = OscarStructure(weight, first, oscar.lambda1, oscar.lambda2)
        structure: OscarStructure = state["structure"]
        structure.lengthen(weight.size)
        return structure


def _dimension(group: Group, weight: Float64) -> int:
    given: int | None = group["regularizer"].dimension
    return max(weight.size - group["unregularized"], 0) if given is None else given


def _check(why: int, where: str, dimension: int) -> None:
    """Raise what has kept a kernel from taking a step."""
    if why == WEIGHT:
        raise DivergenceError(
            f"{where} would make a weight infinite: lower the learning rate, and check the feature "
            "values of the k-best lists"
        )
    if why == DIMENSION:
        raise dimension_error(dimension, f"after {where} more")
