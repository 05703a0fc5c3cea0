"""The rendered chart on a cluster of network namespaces: real processes, probes, DNS, policies, signals (tests/deploy/cluster).

    cluster_test.py                       what scripts/check-deploy runs: a few variants, an upgrade, autoscaling, a lost node, at the same time
    cluster_test.py --all [--jobs N]      everything, and a table
    cluster_test.py --only NAME           one scenario; one variant is "install NAME"
    cluster_test.py --list

Needs root, iproute2, nftables and crun; ends with 77 without them. PENSTOCK_BIN_DIR says where the programs are."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import traceback

from cluster import machine

PROGRAMS = pathlib.Path(os.environ["PENSTOCK_BIN_DIR"])
LOGS = pathlib.Path(__file__).resolve().parents[2] / "build/logs/cluster"
# The test of the cluster itself: a name to classes of cluster_parts_test.py.
PARTS = {"the cluster itself: pods": ["Decisions", "Parts"], "the cluster itself: rights and IPv6": ["Rights", "Calls", "OfIpv6"]}
# The longest ones begin first.
QUICK = ["upgrade", "autoscaling: leader", "autoscaling: load", "lost node", *PARTS, "install keys and certificates", "install openshift",
         "install defaults, IPv6 alone", "autoscaling: no rights"]


def scenarios():
    """Name to a function of the folder of its cluster, and whether to hurry."""
    from cluster import expiry, scaling, scenarios as all_of, variants_here
    own = {"upgrade": all_of.upgrade, "scale": all_of.scale, "drain": all_of.drain, "lost node": all_of.lost_node,
           "certificates": expiry.certificates, "autoscaling: leader": scaling.leader, "autoscaling: load": scaling.grows,
           "autoscaling: propose": scaling.proposes, "autoscaling: no rights": scaling.refused}
    found = {name: lambda folder, hurry, run=run: run(folder, PROGRAMS, hurry=hurry) for name, run in own.items()}
    for name in variants_here.names():
        found[f"install {name}"] = lambda folder, hurry, name=name: all_of.install(folder, PROGRAMS, name, hurry)
    for name in sorted(variants_here.GPU):
        found[f"refuse {name}"] = lambda folder, hurry, name=name: all_of.refuse_without_gpu(folder, PROGRAMS, name)
    return found


def run_here(name, hurry):
    """One scenario on a machine of its own: its row, as a line of JSON."""
    folder = machine.enter() / "cluster"
    begun, code = time.monotonic(), 0
    try:
        row = scenarios()[name](folder, hurry)
    except Exception as error:
        row, code = {"error": f"{error!r:.4000}"}, 1
        traceback.print_exc()
    kept = LOGS / name.replace(" ", "-").replace("/", "-")
    shutil.rmtree(kept, ignore_errors=True)
    if (folder / "logs").exists():
        shutil.copytree(folder / "logs", kept)
    print(json.dumps({"name": name, "wall_s": time.monotonic() - begun, **row}), flush=True)
    os._exit(code)  # the machine ends, and all that runs on it


def run_parts(name):
    """The row and the output of one of PARTS."""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("cluster_parts_test.py"), *PARTS[name]], capture_output=True, text=True,
                          check=False)
    return {"name": name, "wall_s": time.monotonic() - begun, **({"error": "see above"} if done.returncode else {})}, done.stderr


def run_apart(name, hurry):
    if name in PARTS:
        return said(*run_parts(name))
    done = subprocess.run([sys.executable, __file__, "--only", name, *(["--hurry"] if hurry else [])], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    row = json.loads(lines[-1]) if lines else {"name": name, "error": done.stdout + done.stderr}
    return said(row, done.stderr)


def said(row, text):
    print(f"{'failed' if 'error' in row else 'ok'}  {row['name']}  {row.get('wall_s', 0):.0f} s", file=sys.stderr, flush=True)
    if "error" in row:
        print(text[-6000:], file=sys.stderr, flush=True)
    return row


def cell(value):
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def table(rows, first, columns):
    """Markdown."""
    lines = ["| " + " | ".join([first, *columns.values()]) + " |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        lines.append("| " + " | ".join([row["name"].split(" ", 1)[-1] if first == "variant" else row["name"],
                                        *(cell(row.get(key, "")) for key in columns)]) + " |")
    return "\n".join(lines)


def report(rows):
    installs = [row for row in rows if row["name"].startswith("install ") and "error" not in row]
    loads = [row for row in rows if "requests" in row]
    refused = [row["name"].removeprefix("refuse ") for row in rows if row["name"].startswith("refuse ") and "error" not in row]
    print(table(installs, "variant", {"pods": "pods", "ready_s": "ready after (s)", "ended_s": "ended within (s)"}), end="\n\n")
    columns = {"requests": "requests", "failed": "failed", "changed": "other tokens", "retries": "retries", "broken": "broke off",
               "took_s": "took (s)", "up_s": "up (s)", "down_s": "down (s)", "recovered_s": "recovered (s)", "gap_s": "longest gap (s)"}
    print(table(loads, "scenario", columns), end="\n\n")
    leases = [row for row in rows if "leaders" in row]
    print(table(leases, "scenario", {"leaders": "leaders", "taken_s": "taken after (s)", "given_s": "given within (s)"}), end="\n\n")
    print(f"{len(installs)} variants installed; accepted their flags and missed a GPU: {', '.join(refused) or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--hurry", action="store_true", help="with --only: minReadySeconds is 1")
    parser.add_argument("--match", default="", help="with --all: scenarios whose name contains it")
    parser.add_argument("--jobs", type=int, default=8, help="clusters at the same time")
    options = parser.parse_args()
    if options.only:
        run_here(options.only, options.hurry)
    reason = machine.refusal()
    if reason:
        print(f"not tested here: {reason}")
        return 77
    names = [name for name in [*PARTS, *scenarios()] if options.match in name] if options.all else QUICK
    if options.list:
        print("\n".join(names))
        return 0
    # Loads first and one after the other, because they need both cores; installs wait most of their time.
    heavy = [name for name in names if not name.startswith(("install ", "refuse ", "the cluster itself"))]
    light = [name for name in names if name not in heavy]
    hurry = not options.all
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        if options.all:
            rows = [run_apart(name, hurry) for name in heavy] + list(pool.map(lambda name: run_apart(name, hurry), light))
        else:
            rows = list(pool.map(lambda name: run_apart(name, hurry), names))
    report(rows)
    failed = [row["name"] for row in rows if "error" in row]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(rows)} scenarios passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
