"""Kernel names as C++ mangles them -> names as people know them."""

import re


def kernel_title(name: str | None) -> str | None:
    """Return the qualified name within a mangled C++ kernel name, or the name as it is."""
    parts = []
    rest = re.sub(r"^_ZN?(L(?=\d))?", "", name or "") if (name or "").startswith("_Z") else ""
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        parts.append(rest[match.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def kernel_base_name(name: str | None) -> str | None:
    """Return the name without namespaces, template arguments and parameters."""
    title = kernel_title(name)
    return title and re.split(r"[<(]", title)[0].split("::")[-1].split(" ")[-1]
