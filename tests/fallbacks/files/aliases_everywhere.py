import torch as t
import torch.nn.functional as g
from torch.nn import Module as Base

times = t.mul


class Model(Base):
    def forward(self, x):
        if x.size(-1) == 1:
            return g.silu(x)
        a, b = x.chunk(2, -1)
        return times(g.silu(a), b)
