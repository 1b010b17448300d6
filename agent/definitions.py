"""What a definition of a problem's reference.py needs of its module, without what only the judge may see."""

from __future__ import annotations

import ast

_JUDGES_ONLY = {"oracle", "PROBES", "make_inputs", "cost", "check", "small", "ODD", "extents", "derive"}


def needed(source: str, name: str) -> list[str]:
    """Imports, then the top-level definitions that `name` refers to, directly or not, in their order."""
    tree = ast.parse(source)
    defined = {target: node for node in tree.body for target in _targets(node)}
    imports = {
        (alias.asname or alias.name).partition(".")[0]: (node, alias)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    wanted, queue = set[str](), [name]
    while queue:
        if (current := queue.pop()) in wanted or current in _JUDGES_ONLY:
            continue
        wanted.add(current)
        if node := defined.get(current):
            queue += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    lines = ["from __future__ import annotations\n", "from torch import nn"]
    for known, (statement, alias) in imports.items():
        if known in wanted - {"annotations", "nn"}:
            lines.append(_import(statement, alias))
    head = "\n".join(dict.fromkeys(lines))
    bodies = {id(node): node for target, node in defined.items() if target in wanted}
    return [head, *(_text(source, node) for node in bodies.values())]


def _targets(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _import(statement: ast.stmt, alias: ast.alias) -> str:
    renamed = f" as {alias.asname}" if alias.asname else ""
    if isinstance(statement, ast.ImportFrom):
        return f"from {statement.module} import {alias.name}{renamed}"
    return f"import {alias.name}{renamed}"


def _text(source: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
