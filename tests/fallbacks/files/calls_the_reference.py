from torch import nn

from bench.rms_norm import reference


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.init = {"eps": eps}

    def forward(self, x, weight):
        return reference.reference(self.init, {"x": x, "weight": weight})["out"]
