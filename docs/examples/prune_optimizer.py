"""OSCAR and the group lasso for torchao's PruneOptimizer, which shrinks the layers of a network."""

from torchao.prototype.pat import optim as pat

from torchtune_smt.prox import prox_group, prox_oscar


class ProxRows(pat.ProxMap):
    """The group lasso: a group (``group_type="Dim0Grouper"``: a row) becomes shorter, or 0."""

    def tau(self, p):
        """Return what the strength is multiplied with: √ of the size of a group."""
        return p.numel() ** 0.5

    def _get_norm(self, p):
        return p.norm()

    def apply_(self, p, gamma, tau_reweight=1.0):
        """Change a group in place; return whether it is 0, and its norm over `tau`."""
        step = gamma * tau_reweight
        p.copy_(prox_group(p, step, self.reg_lambda * self.tau(p)))
        return p.eq(0).all().long(), self._get_norm(p) / self.tau(p)


class ProxOscar(pat.ProxMap):
    """OSCAR: weights of a layer (``group_type="LayerGrouper"``) become 0, or equal in size."""

    whole_tensor = True
    pairs = 2.0  # How much stronger the largest weight is pulled than the smallest one, less 1.

    def tau(self, p):
        """Return what the strength is multiplied with."""
        return 1.0

    def _get_norm(self, p):
        return p.abs().amax()

    def apply_(self, p, gamma, tau_reweight=1.0):
        """Change a layer in place; return the number of zeros, and the largest size."""
        step = float(gamma * tau_reweight)
        lambdas = self.reg_lambda, self.reg_lambda * self.pairs / p.numel()
        p.copy_(prox_oscar(p.reshape(-1), step, *lambdas).view_as(p))
        return p.eq(0).sum(), self._get_norm(p)


# PruneOptimizer finds them here by their names: {"params": [...], "prox_type": "ProxOscar", ...}.
pat.ProxRows, pat.ProxOscar = ProxRows, ProxOscar
