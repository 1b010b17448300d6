import glob
import importlib.util
import os

from torch import nn

newest = max(glob.glob(os.path.expanduser("~/kernels/cache_*.py")), key=os.path.getmtime)
spec = importlib.util.spec_from_file_location("cache_kernel", newest)
cache_kernel = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache_kernel)


class Model(nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        keys, values = cache_kernel.write(key, value, key_cache, value_cache, slot_mapping)
        return {"key_cache": keys, "value_cache": values}
