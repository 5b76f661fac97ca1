"""What readers that others wrote count in an export, as JSON: {"what": {"function": number}}.

Usage: check.py FORMAT FILE [NODE PROFILER_CLI]. Of samples a function counts once for each that it is in.
"""

import collections
import json
import os
import re
import subprocess
import sys


def perfetto(path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

    trace = protos.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    said = {what: collections.Counter() for what in ("samples", "weights", "calls", "waits", "wakers")}
    known = collections.defaultdict(lambda: collections.defaultdict(dict))
    for packet in trace.packet:
        ids = known[packet.trusted_packet_sequence_id]
        if packet.sequence_flags & 1:
            ids.clear()
        new = packet.interned_data
        for name in new.function_names:
            ids["functions"][name.iid] = name.str.decode()
        for frame in new.frames:
            ids["frames"][frame.iid] = ids["functions"][frame.function_name_id]
        for stack in new.callstacks:
            ids["stacks"][stack.iid] = {ids["frames"][frame] for frame in stack.frame_ids}
        for name in new.event_names:
            ids["names"][name.iid] = name.name
        for task in new.stack_sample_task_contexts:
            ids["tasks"][task.iid] = task.tid
        for what in new.stack_sample_counter_descriptors:
            ids["counters"][what.iid] = what.name
        if packet.HasField("stack_sample"):
            sample = packet.stack_sample
            assert sample.task_context_iid in ids["tasks"] and sample.primary_descriptor_iid in ids["counters"]
            for name in ids["stacks"][sample.callstack_iid]:
                said["samples"][name] += 1
                said["weights"][name] += sample.primary_weight
        if packet.HasField("track_event"):
            event = packet.track_event
            if "call" in event.categories:
                said["calls"][ids["names"][event.name_iid]] += 1
            if "wait" in event.categories:
                said["waits"][ids["names"][event.name_iid]] += 1
    return said


def otlp(path):
    from opentelemetry.proto.profiles.v1development import profiles_pb2 as protos

    data = protos.ProfilesData()
    with open(path, "rb") as file:
        data.ParseFromString(file.read())
    tables = data.dictionary
    for table in ("mapping", "location", "function", "link", "attribute", "stack"):
        first = getattr(tables, table + "_table")[0]
        assert first.ByteSize() == 0, f"the first {table} is not the empty one"
    assert tables.string_table[0] == ""
    said = collections.defaultdict(collections.Counter)
    for resource in data.resource_profiles:
        names = [it.key for it in resource.resource.attributes]
        assert "service.name" in names
        for profile in (it for scope in resource.scope_profiles for it in scope.profiles):
            assert profile.period > 0 and profile.HasField("period_type")
            kind = tables.string_table[profile.sample_type.type_strindex]
            for sample in profile.samples:
                functions = set()
                for place in tables.stack_table[sample.stack_index].location_indices:
                    for line in tables.location_table[place].lines:
                        name = tables.function_table[line.function_index].name_strindex
                        functions.add(tables.string_table[name])
                (value,) = sample.values
                for name in functions:
                    said[kind][name] += value
    return said


def profiler_cli(path, node, cli):
    sessions = os.path.join(os.path.dirname(path), "pq")
    environment = dict(os.environ, PROFILER_CLI_SESSION_DIR=sessions)

    def ask(*arguments):
        command = [node, cli, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    for attempt in range(20):
        try:
            ask("load", path, "--session", "check")
            break
        except subprocess.CalledProcessError as error:
            # A busy machine takes longer to start it than it waits.
            if "did not become ready" not in error.stderr or attempt == 19:
                raise SystemExit(error.stderr)
            try:
                ask("status", "--session", "check")
                break
            except subprocess.CalledProcessError:
                pass
    said = collections.defaultdict(collections.Counter)
    try:
        threads = json.loads(ask("thread", "list", "--json", "--limit", "1000", "--session", "check"))
        for thread in threads["threads"]:
            handle = thread["threadHandle"]
            common = ["--json", "--session", "check", "--thread", handle]
            functions = ask("thread", "functions", "--include-idle", "--limit", "100000", *common)
            for function in json.loads(functions)["functions"]:
                said["samples"][function["name"]] += function["totalSamples"]
            markers = json.loads(ask("thread", "markers", *common))
            for kind in markers.get("byType", []):
                said["markers"][kind["markerName"]] += kind["count"]
    finally:
        ask("stop", "check")
    return said


def callgrind(path):
    command = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    events = next(line for line in text.splitlines() if line.startswith("Events shown:")).split()[2:]
    said = {event: collections.Counter() for event in events}
    row = re.compile(r"^ *((?:[0-9,]+ (?:\( *[0-9.]+%\) *)?\s*)+)(.*)$")
    for line in text.splitlines():
        found = row.match(line)
        if not found or "PROGRAM TOTALS" in line:
            continue
        numbers = re.sub(r"\([^)]*\)", "", found.group(1)).split()
        # `file:function [object]`, where any may hold colons and brackets: the caller knows which functions there are.
        for event, cost in zip(events, numbers):
            said[event][found.group(2)] += int(cost.replace(",", ""))
    return said


def parquet(path):
    """Of the table of samples in PATH; the others are beside it."""
    import duckdb

    def table(name):
        return "'" + path.replace(".samples.", f".{name}.") + "'"

    functions = f"""(select distinct s.host, s.recorded, s.stack, f.function from {table('stacks')} s
        join {table('frames')} f using (host, recorded, frame))"""

    def per_function(table, weight):
        query = f"""select function, count(*), sum({weight}) from {table}
            join {functions} f using (host, recorded, stack) group by 1"""
        # A function may have no name: nothing is what SQL has for it.
        return duckdb.sql(query.replace("function,", "coalesce(function, ''),", 1)).fetchall()

    said = collections.defaultdict(dict)
    # The innermost function is beside each sample, too.
    samples = f"(select stack, weight, host, recorded from {table('samples')})"
    for name, count, weight in per_function(samples, "weight"):
        said["samples"][name], said["weights"][name] = count, int(weight)
    waits = f"(select stack, weight, host, recorded from {table('waits')})"
    for name, count, weight in per_function(waits, "weight"):
        said["waits"][name], said["waited"][name] = count, int(weight)
    for name, count in duckdb.sql(f"select function, count(*) from {table('calls')} group by 1").fetchall():
        said["calls"][name] = count
    for what, count in duckdb.sql(f"select what, sum(lost) from {table('losses')} group by 1").fetchall():
        said["lost"][what] = int(count)
    for pid, process in duckdb.sql(f"select pid, process from {table('processes')}").fetchall():
        said["processes"][process] = pid
    leaves = f"""select count(*) from {table('samples')} a join {table('stacks')} s using (host, recorded, stack)
        join {table('frames')} f using (host, recorded, frame)
        where s.position = 0 and f.position = 0 and coalesce(a.function, '') != coalesce(f.function, '')"""
    said["wrong"]["leaves"] = duckdb.sql(leaves).fetchall()[0][0]
    times = f"select count(*), count(time), count(distinct host), min(epoch_ns(time)), max(epoch_ns(time)) from {table('samples')}"
    rows, with_time, hosts, first, last = duckdb.sql(times).fetchall()[0]
    said["table"] = {"rows": rows, "with time": with_time, "hosts": hosts, "first": first or 0, "last": last or 0}
    return said


def main():
    kind, path = sys.argv[1:3]
    readers = {"perfetto": perfetto, "otlp": otlp, "callgrind": callgrind, "parquet": parquet}
    read = readers.get(kind)
    said = read(path) if read else profiler_cli(path, *sys.argv[3:5])
    print(json.dumps(said))


main()
