"""Runs the cases against a profiler: `run.py PROFILER [PART OF A NAME ..]`. One line each; status 1 if one fails.

Cases that trace a live program are skipped unless this is root.
"""

import os
import sys
import tempfile
import traceback

import at_agent
import at_hq
from sides import Scene


def main(profiler, names):
    failed = ran = 0
    for part in (at_hq, at_agent):
        for case in part.CASES:
            name = "%s::%s" % (part.__name__, case.__name__)
            if names and not any(wanted in name for wanted in names):
                continue
            if getattr(case, "live", False) and os.geteuid() != 0:
                print("skip %s: needs root" % name, flush=True)
                continue
            ran += 1
            with tempfile.TemporaryDirectory() as folder:
                scene = Scene(os.path.abspath(profiler), folder)
                try:
                    case(scene)
                    print("ok   %s" % name, flush=True)
                except Exception as error:
                    failed += 1
                    print("FAIL %s: %s" % (name, error), flush=True)
                    if os.environ.get("TRACEBACK"):
                        traceback.print_exc()
                finally:
                    scene.close()
    print("%d passed, %d failed" % (ran - failed, failed), flush=True)
    return 1 if failed or not ran else 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
