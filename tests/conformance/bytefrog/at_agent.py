"""A scripted HQ at `profiler stream bytefrog`: replays of captures that a scripted agent has made, live programs."""

import os
import struct
import subprocess
import time

import wire
from at_hq import NAMES, run
from sides import LIMIT, Hq, check, equal
from wire import BUBBLE, DATA_BREAK, DATA_HELLO, DATA_HELLO_REPLY, ENTRY, ERROR, EXCEPTION, EXIT, HEARTBEAT, MARKER
from wire import METHOD, THREAD, THROW

CASES = []


def case(function):
    CASES.append(function)
    return function


def live(function):
    function.live = True
    return case(function)


def captured(scene, rounds=3):
    """A capture of calls of all kinds, `hq.cap`."""
    messages, at = list(NAMES), 0

    def add(kind, *fields):
        nonlocal at
        messages.append((kind, at, at, *fields))
        at += 1

    for _ in range(rounds):
        add(ENTRY, 1, 7)
        add(ENTRY, 2, 7)
        add(THROW, 2, 1, 300, 7)
        add(BUBBLE, 2, 1, 7)
        add(MARKER, "key", "value")
        add(EXIT, 1, 44, 7)
    run(scene, messages)


def replay(scene, *arguments, **configuration):
    return Hq(scene, "--replay", "hq.cap", *arguments, **configuration)


@case
def hello_is_first_and_alone_until_the_configuration(scene):
    captured(scene)
    hq = replay(scene).greet()
    # What had been sent before the configuration would come before the heartbeat that it brings.
    hq.configure().initial().start().open().finish()
    check(all(kind in (HEARTBEAT, DATA_BREAK) for kind, *_ in hq.control.messages), hq.control.messages)


@case
def what_hq_owes_is_said(scene):
    captured(scene)
    hq = replay(scene).greet()
    time.sleep(1.5)
    hq.configure().initial().start().open().finish()
    check("waiting for HQ at " in hq.said and " to send its configuration, for 30 s at most" in hq.said, hq.said)


@case
def a_configuration_that_comes_in_pieces_is_one(scene):
    captured(scene)
    hq = replay(scene).greet()
    for byte in wire.message(wire.CONFIGURATION, wire.configuration(run=3)):
        hq.control.raw(bytes([byte]))
    hq.wanted["run"] = 3
    hq.initial().start().open().finish()


@case
def a_configuration_may_be_longer_than_64_kib(scene):
    captured(scene)
    exclusions = ["java/" + 300 * "concurrent" + "/no%d" % at for at in range(30)] + ["app/inner"]
    check(len(wire.configuration(exclusions=exclusions)) > 65535, "it is not that long")
    told = replay(scene, exclusions=exclusions).ready().start().open().finish().told()
    equal((entries(told, "outer"), entries(told, "inner")), (3, 0))


@case
def the_last_configuration_before_the_start_counts(scene):
    captured(scene)
    hq = replay(scene).greet().configure(run=1, senders=1).configure(run=200, senders=3).initial()
    hq.start().open().finish()


@case
def the_run_id_is_echoed_as_a_byte(scene):
    captured(scene)
    for number in (0, 127, 128, 255):
        replay(scene, run=number).ready().start().open().finish()


@case
def heartbeats_tell_the_mode_each_interval(scene):
    captured(scene)
    hq = replay(scene, heartbeat=20).ready()
    hq.control.wait("heartbeats", lambda messages: len(messages) >= 5)
    equal({message[:2] for message in hq.control.messages}, {(HEARTBEAT, ord("I"))})
    hq.start().open().finish()
    modes = [chr(message[1]) for message in hq.control.messages if message[0] == HEARTBEAT]
    equal(sorted(set(modes), key=modes.index), ["I", "T", "X"])
    equal(modes, sorted(modes, key="ITX".index), "the order of modes")


@case
def data_waits_for_the_reply_to_its_hello(scene):
    captured(scene)
    hq = replay(scene).ready().start()
    line = hq.accept()
    equal(line.next(), (DATA_HELLO, 0))
    # Heartbeats go on, and data does not begin.
    before = len(hq.control.messages)
    hq.control.wait("heartbeats", lambda messages: len(messages) >= before + 2)
    line.socket.setblocking(False)
    try:
        check(False, "data before the reply:", line.socket.recv(1))
    except BlockingIOError:
        pass
    line.socket.setblocking(True)
    line.send(DATA_HELLO_REPLY)
    hq.data.append(line.listen())
    hq.finish()


@case
def no_data_connection_comes_before_the_start(scene):
    captured(scene)
    hq = replay(scene, heartbeat=20).ready()
    hq.control.wait("heartbeats", lambda messages: len(messages) >= 5)
    hq.listener.setblocking(False)
    try:
        check(False, "connected before the start:", hq.listener.accept())
    except BlockingIOError:
        pass
    hq.listener.settimeout(LIMIT)
    hq.start().open().finish()


@case
def every_data_message_has_its_form(scene):
    captured(scene)
    for senders in (1, 4):
        told = replay(scene, senders=senders).ready().start().open().finish()
        kinds = {message[0] for message in told.messages}
        equal(kinds, {THREAD, METHOD, EXCEPTION, ENTRY, EXIT, THROW, BUBBLE, MARKER})
        calls = [line for line in told.told() if not line.startswith("mark recording")]
        outer, inner = "outer [app] src/a.c:3", "inner [app] src/a.c:9"
        equal(calls, 3 * [
            "0 +" + outer, "0 +" + inner, "0 !%s std::runtime_error:300" % inner,
            "0 -%s std::runtime_error" % inner, "mark mark: key: value", "0 -%s:44" % outer])
        keys = [m[3] for m in told.sequenced if m[0] == MARKER]
        equal((keys[0], keys[-1]), ("recording started", "recording ended"))


@case
def times_count_from_the_start_of_tracing(scene):
    captured(scene)
    told = replay(scene).ready().start().open().finish()
    times = [m[1] for m in told.sequenced]
    equal(times, sorted(times))
    calls = [m[1] for m in told.sequenced if m[0] in (ENTRY, EXIT, THROW, BUBBLE)]
    check(calls[0] < 1000, "the first time", calls[0])
    equal([at - calls[0] for at in calls[:6]], [0, 1, 2, 3, 5, 6])


@case
def the_grammar_of_java_is_kept_where_it_is_asked_for(scene):
    captured(scene)
    told = replay(scene, "--names", "grammar").ready().start().open().finish()
    equal(sorted(told.names[METHOD].values()), ["app.inner;9;()V", "app.outer;9;()V"])


@case
def inclusions_and_exclusions_leave_functions_out(scene):
    captured(scene)
    for exclusions, inclusions, left in (
            (["app/inner"], [], ["outer"]), ([".*"], ["app/inn.*"], ["inner"]), (["java/.*"], [], ["inner", "outer"]),
            (["pp/inner"], [], ["inner", "outer"])):
        told = replay(scene, exclusions=exclusions, inclusions=inclusions).ready().start().open().finish()
        entered = {line.split("+")[1].split(" ")[0] for line in told.told() if "+" in line}
        equal(sorted(entered), left, (exclusions, inclusions))


@case
def heartbeats_overtake_data_that_is_not_read(scene):
    calls = []
    for at in range(0, 400_000, 2):
        calls += [(ENTRY, at // 100, at, 1, 7), (EXIT, at // 100, at + 1, 1, 5, 7)]
    run(scene, NAMES + calls)
    hq = replay(scene, heartbeat=20).ready().start()
    line = hq.accept()
    equal(line.next(), (DATA_HELLO, 0))
    line.send(DATA_HELLO_REPLY)
    full = hq.control.wait("heartbeat with full buffers",
                           lambda messages: [m for m in messages if m[0] == HEARTBEAT and m[2] > 0])
    equal(full[0][1], ord("T"))
    hq.data.append(line.listen())
    told = hq.finish()
    equal(len(told.sequenced), 400_000 + 2)


@case
def the_end_waits_for_stop_with_all_data_sent(scene):
    captured(scene)
    hq = replay(scene, heartbeat=20).ready().start().open()
    hq.mode("X")
    check(hq.data[0].ended is None, "data was closed before stop")
    hq.control.send(wire.STOP)
    hq.data[0].end()
    check(hq.control.ended is None, "control was closed before data")
    hq.data[0].close()
    equal([m[1] for m in hq.control.end() if m[0] == HEARTBEAT].count(ord("X")), 1, "heartbeats that say the end")
    hq.control.close()
    hq.tool.end()


@case
def an_hq_that_does_not_answer_the_end_is_not_waited_for_long(scene):
    captured(scene)
    hq = replay(scene).ready().start().open()
    hq.mode("X")
    hq.data[0].end()
    hq.data[0].close()
    hq.control.end()
    hq.control.close()
    check("HQ did not answer that the run has ended" in hq.tool.end(), "nothing is said")


@case
def pause_stands_still_and_loses_nothing(scene):
    captured(scene, rounds=200)
    hq = replay(scene, "--speed", "1", heartbeat=20).ready().start().open()
    hq.mode("T")
    hq.control.send(wire.PAUSE)
    hq.mode("P")
    hq.control.send(wire.UNPAUSE)
    hq.mode("T", after=hq.mode("P"))
    told = hq.finish()
    equal(sum(line.startswith("0 ") for line in told.told()), 200 * 5)


@case
def an_error_is_shown_and_ends_all(scene):
    captured(scene)
    text = "no more \u00e9\U0001f438"
    hq = replay(scene).greet()
    hq.control.send(ERROR, text)
    equal(hq.control.next(), None)
    check(text in hq.tool.end(1), "the error is not shown")
    hq = replay(scene).ready()
    hq.control.send(ERROR, text)
    hq.control.end()
    said = hq.tool.end(1)
    check(text in said and "nothing was sent" in said, said)
    hq = replay(scene, "--speed", "0.001").ready().start().open()
    hq.control.send(ERROR, text)
    for line in (hq.control, *hq.data):
        line.gone()
    check(text in hq.tool.end(1), "the error is not shown")


@case
def a_refused_data_connection_ends_the_run(scene):
    captured(scene)
    hq = replay(scene).ready().start()
    line = hq.accept()
    line.next()
    line.send(ERROR, "Unknown run")
    said = hq.tool.end(1)
    check("refused data connection 1: Unknown run" in said, said)
    # HQ is told why.
    equal(hq.control.gone()[-1][0], ERROR)


@case
def what_is_no_message_ends_the_run(scene):
    captured(scene)
    for raw in (b"\xfa", wire.message(ENTRY, 1, 0, 1, 0), b"\x63\0\4\xf0\x9f\x90\xb8"):
        hq = replay(scene).ready()
        hq.control.raw(raw)
        hq.control.gone()
        said = hq.tool.end(1)
        check("can't be understood" in said, said)


@case
def a_configuration_that_is_not_understood_is_replaced_by_defaults(scene):
    captured(scene)
    hq = replay(scene).greet()
    hq.control.send(wire.CONFIGURATION, b"\xac\xed\0\5nonsense")
    hq.initial().start().open().finish()
    check("defaults are used" in hq.said, hq.said)


@case
def hq_that_leaves_is_told_of(scene):
    captured(scene)
    hq = replay(scene).ready()
    hq.control.close()
    said = hq.tool.end(1)
    check("HQ closed it; nothing was sent" in said, said)
    hq = replay(scene, "--speed", "0.001").ready().start().open()
    hq.control.close()
    check("lost the control connection" in hq.tool.end(1), "nothing is said")


@case
def an_address_that_is_none_is_refused(scene):
    captured(scene)
    for address in ("http://localhost:8765", "a b", "[::1"):
        done = subprocess.run([scene.profiler, "stream", "bytefrog", address, "--replay", "hq.cap"], cwd=scene.folder,
                              capture_output=True, text=True, timeout=LIMIT)
        equal(done.returncode, 2, address)
        check("is no address of an HQ" in done.stderr, done.stderr)


# Live programs.


class Program:
    """`calls`, and how far it is."""

    def __init__(self, scene):
        self.path, self.file = scene.path("calls"), scene.path("rounds")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls.c")
        subprocess.run(["cc", "-O1", "-g", "-o", self.path, source], check=True)

    def command(self, rounds, step_us=0):
        return [self.path, str(rounds), str(step_us), self.file]

    def rounds(self):
        try:
            with open(self.file, "rb") as file:
                return struct.unpack("=Q", file.read(8))[0]
        except (OSError, struct.error):
            return None

    def reach(self, rounds):
        until = time.monotonic() + LIMIT
        while (self.rounds() or 0) < rounds:
            check(time.monotonic() < until, "the program stands still at", self.rounds())
            time.sleep(0.005)


TRACE = ("--budget", "off", "--trace", "calls:outer", "--trace", "calls:inner")


def program(scene, rounds, step_us=0, *arguments, trace=TRACE, **configuration):
    made = Program(scene)
    hq = Hq(scene, *trace, *arguments, command=made.command(rounds, step_us), heartbeat=20, **configuration)
    return made, hq.ready()


def entries(told, name):
    return sum(" +%s " % name in line for line in told)


@live
def a_command_runs_when_hq_starts_it(scene):
    made, hq = program(scene, 50)
    check(made.rounds() is None, "it runs already")
    hq.tool.said("waiting for HQ at 127.0.0.1")
    check(made.rounds() is None, "it runs already")
    told = hq.start().open().finish().told()
    equal((made.rounds(), entries(told, "outer"), entries(told, "inner")), (50, 50, 50))
    check(any(line.startswith("0 +outer [calls] ") and line.endswith("calls.c:17") for line in told), told[:9])
    classes = [m for m in hq.control.messages if m[0] == wire.TRANSFORMED]
    equal(classes, [(wire.TRANSFORMED, "calls")])


@live
def a_command_runs_when_all_connections_are_agreed(scene):
    made, hq = program(scene, 50, senders=2)
    hq.start()
    lines = []
    for _ in range(2):
        lines.append(hq.accept())
        equal(lines[-1].next(), (DATA_HELLO, 0))
        before = len(hq.control.messages)
        hq.control.wait("heartbeats", lambda messages: len(messages) >= before + 10)
        check(made.rounds() is None, "it runs already")
        equal({message[1] for message in hq.control.messages if message[0] == HEARTBEAT}, {ord("I")})
        lines[-1].send(DATA_HELLO_REPLY)
    hq.data = [line.listen() for line in lines]
    told = hq.finish().told()
    equal((made.rounds(), entries(told, "outer")), (50, 50))


@live
def a_command_whose_data_connections_are_not_accepted_never_ran(scene):
    made, hq = program(scene, 50)
    hq.start().accept().next()
    said = hq.tool.end(1)
    wanted = "HQ sent no reply to the hello of a data connection within 10 s"
    check(wanted in said and "; the command never ran" in said and made.rounds() is None, said)
    made, hq = program(scene, 50)
    line = hq.start().accept()
    line.next()
    line.send(ERROR, "Unknown run")
    said = hq.tool.end(1)
    check("Unknown run; the command never ran" in said and made.rounds() is None, said)
    # Who orders the end in between ends it.
    made, hq = program(scene, 50)
    line = hq.start().accept()
    line.next()
    hq.control.send(wire.STOP)
    before = len(hq.control.messages)
    hq.control.wait("heartbeats", lambda messages: len(messages) >= before + 10)
    line.send(DATA_HELLO_REPLY)
    hq.data = [line.listen()]
    hq.finish(125)
    check("the command never ran" in hq.said and made.rounds() is None, hq.said)


@live
def a_command_that_hq_leaves_never_ran(scene):
    made, hq = program(scene, 50)
    hq.control.close()
    said = hq.tool.end(1)
    check("HQ closed it; the command never ran" in said and made.rounds() is None, said)


@live
def a_command_that_hq_stops_before_the_start_never_ran(scene):
    made, hq = program(scene, 50)
    hq.control.send(wire.STOP)
    said = hq.tool.end(125)
    check("stopped the run before it began; the command never ran" in said and made.rounds() is None, said)
    equal(said.count("HQ"), 1, "one line says it: " + said)


@live
def stop_ends_the_program_and_sends_what_is_left(scene):
    made, hq = program(scene, 1 << 40, 100)
    hq.start().open()
    made.reach(100)
    hq.control.send(wire.STOP)
    told = hq.finish().told()
    check(entries(told, "outer") >= 100, "what came before the stop is missing")
    reached = made.rounds()
    check(abs(reached - entries(told, "outer")) < reached, "rounds", reached)
    check(not processes(made.path), "the program runs on")


def processes(path):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink("/proc/%s/exe" % pid) == path:
                found.append(int(pid))
        except OSError:
            pass
    return found


@live
def pause_stops_the_program_and_loses_nothing(scene):
    made, hq = program(scene, 2000, 200)
    hq.start().open()
    made.reach(50)
    hq.control.send(wire.PAUSE)
    hq.mode("P")
    (pid,) = processes(made.path)
    with open("/proc/%d/stat" % pid) as stat:
        equal(stat.read().rsplit(") ", 1)[1][0], "T", "its state")
    hq.control.send(wire.UNPAUSE)
    told = hq.finish().told()
    equal((made.rounds(), entries(told, "outer"), entries(told, "inner")), (2000, 2000, 2000))
    check(not any(m[0] == DATA_BREAK for m in hq.control.messages), "a data break")


def broken(hq):
    return [m[1] for m in hq.control.messages if m[0] == DATA_BREAK]


@live
def suspended_it_runs_and_a_break_says_what_is_missing(scene):
    made, hq = program(scene, 1 << 40, 200)
    hq.start().open()
    hq.data[0].one(ENTRY)
    hq.control.send(wire.SUSPEND)
    at = hq.mode("S")
    made.reach((made.rounds() or 0) + 200)
    resumed = made.rounds()
    hq.control.send(wire.UNSUSPEND)
    hq.mode("T", after=at)
    made.reach(resumed + 200)
    hq.control.send(wire.STOP)
    run = hq.finish()
    (sequence,) = broken(hq)
    # The marker is announced before what follows it.
    equal(run.sequenced[sequence - 1][0], MARKER, "before the break")
    told = run.told(breaks=[sequence])
    count = entries(told, "outer")
    check(100 < count <= made.rounds() - 150, "%d of %d rounds" % (count, made.rounds()))


@live
def suspended_before_the_start_nothing_comes_until_it_is_wanted(scene):
    made, hq = program(scene, 1 << 40, 200)
    hq.start(wire.SUSPEND).open()
    at = hq.mode("S")
    made.reach(200)
    check(not any(m[0] in (ENTRY, EXIT) for m in hq.data[0].messages), hq.data[0].messages[:4])
    equal([m for m in hq.control.messages if m[:2] == (HEARTBEAT, ord("T"))], [])
    hq.control.send(wire.UNSUSPEND)
    hq.mode("T", after=at)
    hq.data[0].one(ENTRY)
    hq.control.send(wire.STOP)
    run = hq.finish()
    run.told(breaks=broken(hq))


@live
def an_error_lets_the_program_run_on(scene):
    made, hq = program(scene, 500, 200)
    hq.start().open()
    made.reach(50)
    hq.control.send(ERROR, "enough")
    for line in (hq.control, *hq.data):
        line.gone()
    check("HQ ended the run: enough" in hq.tool.end(1), hq.tool.lines)
    equal(made.rounds(), 500)


@live
def classes_of_which_nothing_is_wanted_are_ignored(scene):
    made, hq = program(scene, 50, exclusions=["calls/.*"])
    told = hq.start().open().finish().told()
    equal((made.rounds(), entries(told, "outer")), (50, 0))
    classes = [m for m in hq.control.messages if m[0] in (wire.TRANSFORMED, wire.IGNORED, wire.FAILED)]
    equal(classes, [(wire.IGNORED, "calls")])
    check("HQ's inclusions and exclusions admit none of them" in hq.said, hq.said)


@live
def what_ran_before_its_probes_is_said_on_both_sides(scene):
    made = Program(scene)
    command = ["sh", "-c", '"$@"; true', "sh", *made.command(50)]
    hq = Hq(scene, *TRACE, command=command, heartbeat=20).ready()
    told = hq.start().open().finish().told()
    equal(made.rounds(), 50)
    gap = [line for line in told if line.startswith("mark not traced: ") and "not watched until probes" in line]
    check(gap, told)
    check("note: calls of new programs or files may be missing in " in hq.said, hq.said)


@live
def others_that_do_not_run_the_program_pay_nothing(scene):
    made, hq = program(scene, 50, 0, "--follow-exact")
    equal(entries(hq.start().open().finish().told(), "outer"), 50)
    # The C library, which all have, has probes that only exceptions pass.
    check("other process" not in hq.said, hq.said)
