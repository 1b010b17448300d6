"""fault: compile"""

from torch import nn

from atrex.dsl import cpp

library = cpp.compile('extern "C" void f() { return 1 }', {"f": []})


class Model(nn.Module):
    pass
