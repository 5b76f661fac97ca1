"""Runs the cases against a profiler, as root: `run.py PROFILER [PART OF A NAME ..]`. One line each; status 1 if one fails.

`run.py PROFILER exchanges SECONDS` exchanges what is well and badly made with it for so long, in place of the cases.
"""

import asyncio
import os
import sys
import tempfile
import traceback

import exchanges
import other_services
import profiler_service
from side import Scene

#: No case takes so long unless it hangs.
CASE_S = 180


async def run(case, scene):
    try:
        await asyncio.wait_for(case(scene), CASE_S)
    finally:
        scene.close()


def main(profiler, names):
    if os.geteuid() != 0:
        print("skip: an agent needs root")
        return 1
    profiler = os.path.abspath(profiler)
    if names[:1] == ["exchanges"]:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(exchanges.main(Scene(profiler, folder), float(names[1])))
    failed = ran = 0
    for part in (profiler_service, other_services):
        for case in part.CASES:
            name = "%s::%s" % (part.__name__, case.__name__)
            if names and not any(wanted in name for wanted in names):
                continue
            ran += 1
            with tempfile.TemporaryDirectory() as folder:
                try:
                    asyncio.run(run(case, Scene(profiler, folder)))
                    print("ok   %s" % name, flush=True)
                except Exception as error:
                    failed += 1
                    print("FAIL %s: %s %s" % (name, type(error).__name__, error), flush=True)
                    if os.environ.get("TRACEBACK"):
                        traceback.print_exc()
    print("%d passed, %d failed" % (ran - failed, failed), flush=True)
    return 1 if failed or not ran else 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
