"""fault: import"""

class Model(:
