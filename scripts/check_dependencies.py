"""Checks the locked dependencies: licences, crates that must stay out, floors, and crates built in two versions.

Only what ends up in the program counts: crates that build or test it are looked at for nothing but their licences.
"""

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
DUPLICATES = {
    "base64": "instant-acme 0.8 still takes 0.22",
    "untrusted": "instant-acme 0.8 takes aws-lc-rs with the features it has by default",
}


def main():
    everything = tree("--workspace", "--edges=normal,build,dev")
    program = tree("--package=culvert", "--edges=normal,no-proc-macro")

    faults = []
    for name, version, licence in sorted(everything):
        if not allowed(licence):
            faults.append(f"{name} {version}: licence {licence!r} is not in the list")
    versions = {}
    for name, version, _ in sorted(program):
        versions.setdefault(name, []).append(version)
        if name in BANNED:
            faults.append(f"{name} {version} must stay out: {BANNED[name]}")
        if name in FLOORS and numbers(version) < FLOORS[name]:
            faults.append(f"{name} {version} has known faults, take {'.'.join(map(str, FLOORS[name]))} or newer")
    for name, several in versions.items():
        if len(several) > 1 and name not in DUPLICATES:
            faults.append(f"{name} is there in several versions: {', '.join(several)} (see cargo tree -d)")

    print(f"{len(program)} crates in the program, {len(everything)} with the tests and what builds them")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def tree(*selection):
    """Name, version and licence of each crate that cargo would build."""
    lines = subprocess.check_output(
        ["cargo", "tree", "--locked", *selection, "--prefix=none", "--no-dedupe", "--format={p}|{l}"], text=True)
    crates = set()
    for line in filter(None, lines.splitlines()):
        package, licence = line.split("|")
        name, version = package.split()[:2]
        crates.add((name, version.removeprefix("v"), licence.removesuffix(" (*)")))
    return crates


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
