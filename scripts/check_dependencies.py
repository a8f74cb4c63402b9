"""Checks the locked dependencies: licences, crates that must stay out, floors, and crates built in two versions.

Only what ends up in the program counts, so dev-dependencies are looked at for nothing but their licences.
"""

import json
import re
import subprocess
import sys

LICENCES = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC", "MIT",
    "MIT-0", "OpenSSL", "Unicode-3.0", "Unlicense", "Zlib",
}

# Crates that must not be in the program, each with the reason.
BANNED = {
    "native-tls": "TLS is rustls on aws-lc-rs",
    "openssl-sys": "TLS is rustls on aws-lc-rs",
    "ring": "aws-lc-rs is the one crypto library",
}

# Versions below these have known faults.
FLOORS = {"quinn-proto": (0, 11, 19)}

# Crates that may be there in two versions, each with the reason. Empty is the aim.
DUPLICATES = {}


def main():
    metadata = json.loads(subprocess.check_output(
        ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"]))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    everything = reachable(nodes, metadata["workspace_members"], {None, "build", "dev"})
    program = reachable(nodes, metadata["workspace_members"], {None, "build"})

    faults = []
    for package in (packages[id] for id in sorted(everything)):
        if package["source"] and not allowed(package["license"] or ""):
            faults.append(f"{package['name']} {package['version']}: licence {package['license']!r} is not in the list")
    versions = {}
    for package in (packages[id] for id in sorted(program)):
        name, version = package["name"], package["version"]
        versions.setdefault(name, []).append(version)
        if name in BANNED:
            faults.append(f"{name} {version} must stay out: {BANNED[name]}")
        if name in FLOORS and numbers(version) < FLOORS[name]:
            faults.append(f"{name} {version} has known faults, take {'.'.join(map(str, FLOORS[name]))} or newer")
    for name, several in versions.items():
        if len(several) > 1 and name not in DUPLICATES:
            faults.append(f"{name} is there in several versions: {', '.join(several)} (see cargo tree -d)")

    print(f"{len(program)} crates in the program, {len(everything)} with the tests")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def reachable(nodes, roots, kinds):
    """The packages reached from the roots over dependencies of these kinds."""
    seen, todo = set(), list(roots)
    while todo:
        id = todo.pop()
        if id not in seen:
            seen.add(id)
            todo += (dep["pkg"] for dep in nodes[id]["deps"] if any(kind["kind"] in kinds for kind in dep["dep_kinds"]))
    return seen


def numbers(version):
    return tuple(int(part) for part in re.match(r"(\d+)\.(\d+)\.(\d+)", version).groups())


def allowed(expression):
    """Whether an SPDX expression, or the older form with slashes, can be met with the listed licences."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def any_of():
        met = all_of()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            met = all_of() or met
        return met

    def all_of():
        met = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            met = one() and met
        return met

    def one():
        token = tokens.pop(0) if tokens else ""
        if token == "(":
            met = any_of()
            tokens.pop(0)
            return met
        if tokens and tokens[0] == "WITH":
            # An exception only adds rights.
            del tokens[:2]
        return token in LICENCES

    return any_of()


if __name__ == "__main__":
    sys.exit(main())
