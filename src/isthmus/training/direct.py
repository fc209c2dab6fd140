"""Mean squared error of a chain of layers and its gradient, written out: no graph, and no memory taken in a step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.networks import Hourglass


class DirectMeanSquare:
    """(1/N)Σ‖f(x) − y‖² and its gradient, added to the parameters' ``grad``.

    For small networks the time of a step goes into memory: autograd takes and returns every activation, and the system
    clears the pages each time. Here they are taken once. The derivative of a ReLU at 0 is 0, as in autograd.
    """

    def __init__(self, net: Hourglass, rows: int) -> None:
        self.net, self.rows = net, rows
        like = net.weights[0].detach()
        self.activations = [like.new_empty(rows, n) for n in net.dims[1:]]
        self.cotangents = [like.new_empty(rows, n) for n in net.dims[1:]]
        self.masks = {n: like.new_empty(rows, n) for n in set(net.dims[1:-1])}

    @staticmethod
    def for_network(net: nn.Module, loss: str, rows: int) -> DirectMeanSquare | None:
        """The direct way where there is one: an Hourglass of ReLU or linear layers, all of it trained."""
        # Not isinstance: a subclass may have a forward of its own.
        if type(net) is not Hourglass or loss != "mse" or net.bias != 1.0 or net.slope not in (0.0, 1.0):
            return None
        if not all(p.requires_grad for p in net.parameters()):
            return None
        return DirectMeanSquare(net, rows)

    @torch.no_grad()
    def add(self, X: Tensor, Y: Tensor, weight: float) -> float:
        """Add ``weight`` × the mean over these rows; its gradient is added to that of the parameters."""
        count = len(X)
        Ws, bs, slopes = self.net.Ws, self.net.bs, self.net.slopes
        A = X
        inputs = [X]
        for index, (W, b) in enumerate(zip(Ws, bs)):
            A = torch.addmm(b, A, W.mT, out=self.activations[index][:count])
            if index < len(slopes):
                if slopes[index] == 0.0:
                    A.relu_()
                inputs.append(A)
        G = torch.sub(A, Y, out=self.cotangents[-1][:count])
        value = weight * float(torch.dot(G.reshape(-1), G.reshape(-1))) / count
        G.mul_(2.0 * weight / count)
        for index in range(len(Ws) - 1, -1, -1):
            W, b = Ws[index], bs[index]
            assert W.grad is not None and b.grad is not None
            W.grad.addmm_(G.mT, inputs[index])
            b.grad.add_(G.sum(0))
            if index:
                G = torch.mm(G, W, out=self.cotangents[index - 1][:count])
                if slopes[index - 1] == 0.0:
                    # After a ReLU the sign is 1 where it passes and 0 where it does not.
                    G.mul_(torch.sign(inputs[index], out=self.masks[W.shape[1]][:count]))
        return value
