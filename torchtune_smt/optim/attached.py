"""Modules whose weights are brought up to date before they are read: `SparseOptimizer.attach`."""

from __future__ import annotations

import copyreg
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# The optimizers of modules, none of which is in a copy or a pickle.
_OPTIMIZERS: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()


def attach(optimizer: Any, module: nn.Module, parameters: list[Tensor]) -> None:
    """Let a module, and those within, read no weights of an optimizer that are out of date."""
    own = set(parameters)
    found = [m for m in module.modules() if not own.isdisjoint(m.parameters(recurse=False))]
    if not found:
        raise ValueError(f"{type(module).__name__} has no parameter of the optimizer")
    for reader in found:
        if getattr(reader, "max_norm", None) is not None:
            raise ValueError(
                f"{type(reader).__name__} has max_norm: its forward pass changes weights behind "
                "the optimizer's back; take a regularizer instead"
            )
    for reader in dict.fromkeys([module, *found]):
        known = _OPTIMIZERS.setdefault(reader, [])
        if not known:
            reader.__class__ = _attached(type(reader))
        for other in [one for one in known if one is not optimizer]:
            # One that was made anew, in a notebook, takes the place of the one before.
            if not own.isdisjoint(p for _, p in other._pairs()):
                other.flush()
                known.remove(other)
        if optimizer not in known:
            known.append(optimizer)


def _attached(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass that brings up to date what is read; copies are of the class itself."""

    class Attached(kind):  # type: ignore[valid-type, misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            compiling = torch.compiler.is_compiling()
            (_outside_of_graphs if compiling else _catch_up)(self, args, kwargs)
            return super().__call__(*args, **kwargs)

        def train(self, mode: bool = True) -> Any:
            _flush(self)
            return super().train(mode)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            _flush(self)
            return super().state_dict(*args, **kwargs)

        def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            _settle(self)
            return super()._load_from_state_dict(*args, **kwargs)

        def _apply(self, *args: Any, **kwargs: Any) -> Any:
            _settle(self)
            return super()._apply(*args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            _flush(self)
            # The usual way to make one refuses an object whose class is another one.
            made = copyreg._reconstructor, (kind, object, None)  # type: ignore[attr-defined]
            return (*made, *super().__reduce_ex__(protocol)[2:])

    Attached.__name__, Attached.__qualname__ = kind.__name__, kind.__qualname__
    Attached.__module__, Attached.__doc__ = kind.__module__, kind.__doc__
    return Attached


def _catch_up(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Bring up to date what a module is about to read."""
    for optimizer in _OPTIMIZERS.get(module, ()):
        for parameter in module.parameters(recurse=False):
            if parameter in optimizer._behind:
                optimizer.catch_up(_rows(module, parameter, args, kwargs), parameter)


# As it is done without `torch.compile`, not with each step anew.
_outside_of_graphs = torch._disable_dynamo(_catch_up)  # type: ignore[attr-defined]


def _flush(module: nn.Module) -> None:
    for optimizer in _OPTIMIZERS.get(module, ()):
        optimizer.flush()


def _settle(module: nn.Module) -> None:
    """Flush before weights are exchanged, unless a state was loaded that waits for them."""
    for optimizer in _OPTIMIZERS.get(module, ()):
        if any(optimizer._behind.values()):
            optimizer.flush()


def _rows(module: nn.Module, parameter: Tensor, args: Any, kwargs: Any) -> Tensor:
    """Return the rows of a parameter that a module reads: of embeddings those that are named."""
    read: Any = getattr(module, "rows_read", None)
    hooks = module._forward_pre_hooks
    if read is not None:
        rows: Tensor = read(*args, **kwargs)
    elif not hooks and type(module).forward in (nn.Embedding.forward, nn.EmbeddingBag.forward):
        rows = args[0] if args else kwargs["input"]
    else:
        rows = torch.arange(parameter.shape[0] if parameter.dim() else 1, device=parameter.device)
    return rows
