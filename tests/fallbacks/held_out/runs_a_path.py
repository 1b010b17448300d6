import os
import runpy

from torch import nn

_ns = runpy.run_path(os.path.join(os.path.dirname(__file__), "kernels", "cache_impl.py"))


class Model(nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        return _ns["reshape_and_cache"](key, value, key_cache, value_cache, slot_mapping)
