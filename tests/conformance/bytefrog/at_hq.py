"""A scripted agent at `profiler hq`: each case is a sentence of the document, or one of its errors."""

import socket

import wire
from sides import Agent, Hq, Line, check, equal
from wire import BUBBLE, DATA_BREAK, DATA_HELLO, DATA_HELLO_REPLY, ENTRY, ERROR, EXCEPTION, EXIT, HEARTBEAT, HELLO
from wire import MARKER, METHOD, STOP, THREAD, THROW, UNKNOWN_LINE

CASES = []


def case(function):
    CASES.append(function)
    return function


def outcome(agent, words, status=1):
    """Waits for the end of the run as failed, for this reason."""
    said = agent.tool.end(status)
    check(words in said, "never said", repr(words), said)


def run(scene, messages, *arguments, connections=1, breaks=()):
    """A whole run of these messages, dealt to connections in turn; what `hq` says."""
    agent = Agent(scene, scene.hq(*arguments)).start().open(connections)
    for sequence in breaks:
        agent.control.send(DATA_BREAK, sequence)
        # What is announced has to be known before it comes.
        agent.settle()
    for at, message in enumerate(messages):
        agent.data[at % connections].send(*message)
    agent.finish()
    said = agent.tool.end()
    check("is complete" in said and "fault" not in said, said)
    return said


def replayed(scene):
    """The capture of `hq`, as messages of our agent."""
    hq = Hq(scene, "--replay", "hq.cap").ready().start().open()
    return hq.finish()


NAMES = [
    (THREAD, 7, 0, "main"), (METHOD, 1, "outer [app] src/a.c:3"), (METHOD, 2, "inner [app] src/a.c:9"),
    (EXCEPTION, 1, "std::runtime_error"),
]


@case
def hello_is_answered_by_a_configuration_at_once(scene):
    tool = scene.hq("--senders", "3", "--budget", "4096", "--heartbeat", "250", "--include", "a/.*",
                    "--include", "\u00e9\U0001f438", "--exclude", "b/.*")
    found = Agent(scene, tool).configuration
    equal(found.pop("queueRetryCount"), 5)
    equal(found, {"bufferMemoryBudget": 4096, "heartbeatInterval": 250, "numDataSenders": 3, "runId": 0,
                  "inclusions": ["a/.*", "\u00e9\U0001f438"], "exclusions": ["b/.*"]})


@case
def a_version_that_is_unknown_is_an_error_and_the_end(scene):
    line = scene.dial(scene.hq())
    line.send(HELLO, 2)
    equal(line.next()[0], ERROR)
    equal(line.next(), None)


@case
def what_is_no_hello_is_the_end(scene):
    tool = scene.hq()
    for first in (bytes([HEARTBEAT, ord("I"), 0, 0]), bytes([250]), bytes([STOP])):
        line = scene.dial(tool)
        line.raw(first)
        last = line.listen().gone()
        check(all(message[0] == ERROR for message in last), last)


@case
def a_data_hello_is_answered_by_a_reply_and_no_configuration(scene):
    agent = Agent(scene, scene.hq()).start().open(2)
    agent.finish()
    for line in agent.data:
        equal(line.end(), [])
    agent.tool.end()


@case
def an_unknown_run_is_an_error_and_the_end(scene):
    agent = Agent(scene, scene.hq()).start()
    line = scene.dial(agent.tool)
    line.send(DATA_HELLO, 99)
    equal(line.next()[0], ERROR)
    equal(line.next(), None)
    agent.open().finish()
    agent.tool.end()


@case
def start_comes_without_suspend_and_with_it_before(scene):
    for arguments, wanted in (((), [wire.START]), (("--suspend",), [wire.SUSPEND, wire.START])):
        agent = Agent(scene, scene.hq(*arguments)).start()
        equal([kind for kind, *_ in agent.control.messages], wanted)
        agent.tool.kill()


@case
def orders_are_single_bytes_in_the_right_pairs(scene):
    tool = scene.hq("--wait")
    agent = Agent(scene, tool)
    agent.mode("I")
    tool.said("run 0: the agent at")
    orders = {
        "start": [wire.START], "pause": [wire.PAUSE], "unpause": [wire.UNPAUSE], "suspend": [wire.SUSPEND],
        "unsuspend": [wire.UNSUSPEND],
    }
    wanted = []
    for order, mode in (("start", "T"), ("pause", "P"), ("unpause", "T"), ("suspend", "S"), ("unsuspend", "T"),
                        ("pause", "P"), ("suspend", "S"), ("pause", "P"), ("suspend", "S")):
        tool.order(order)
        came = orders[order]
        if wanted[-1:] == [wire.PAUSE] and order == "suspend":
            came = [wire.UNPAUSE, wire.SUSPEND]
        if wanted[-1:] == [wire.SUSPEND] and order == "pause":
            came = [wire.UNSUSPEND, wire.PAUSE]
        wanted += came
        agent.control.wait(order, lambda messages: len(messages) >= len(wanted))
        equal([kind for kind, *_ in agent.control.messages], wanted, order)
        if order == "start":
            agent.open()
        agent.mode(mode)
    tool.order("stop")
    wanted += [wire.UNSUSPEND, wire.STOP]
    agent.control.wait("stop", lambda messages: len(messages) >= len(wanted))
    equal([kind for kind, *_ in agent.control.messages], wanted)
    agent.mode("X")
    for line in agent.data:
        line.socket.shutdown(socket.SHUT_WR)
        line.end()
    agent.control.socket.shutdown(socket.SHUT_WR)
    tool.end()


@case
def every_data_message_arrives_with_all_its_fields(scene):
    run(scene, NAMES + [
        (ENTRY, 10, 0, 1, 7), (ENTRY, 11, 1, 2, 7), (THREAD, 7, 12, "renamed"),
        (THROW, 12, 2, 2, 1, 300, 7), (BUBBLE, 13, 3, 2, 1, 7), (MARKER, 14, 4, "key", "value"),
        (ENTRY, 15, 5, 2, 7), (EXIT, 16, 6, 2, 44, 7), (EXIT, 17, 7, 1, UNKNOWN_LINE, 7),
        (ENTRY, 17, 8, 1, 65535), (EXIT, 18, 9, 1, 65534, 65535),
    ])
    back = replayed(scene)
    outer, inner = "outer [app] src/a.c:3", "inner [app] src/a.c:9"
    calls = [line for line in back.told() if not line.startswith("mark recording")]
    equal(calls, [
        "0 +" + outer, "0 +" + inner, "0 !%s std::runtime_error:300" % inner, "0 -%s std::runtime_error" % inner,
        "mark mark: key: value", "0 +" + inner, "0 -%s:44" % inner, "0 -%s:65535" % outer,
        "1 +" + outer, "1 -%s:65534" % outer,
    ])
    times = [m[1] for m in back.sequenced if m[0] in (ENTRY, EXIT, THROW, BUBBLE)]
    equal([at - times[0] for at in times], [0, 1, 2, 3, 5, 6, 7, 7, 8])
    names = [m[3] for m in back.messages if m[0] == THREAD]
    # A capture that is replayed has the last name of a thread from the beginning.
    equal(names, ["renamed", "thread 65535"])
    thrown = scene.run("report", "hq.cap", "--exceptions")
    check("std::runtime_error  inner" in thrown and "[unknown]" not in thrown, thrown)


@case
def names_may_come_late_and_on_another_connection(scene):
    agent = Agent(scene, scene.hq()).start().open(2)
    agent.data[0].send(ENTRY, 1, 0, 5, 0)
    agent.data[0].send(EXIT, 2, 1, 5, 1, 0)
    agent.data[1].send(METHOD, 5, "late [app]")
    agent.finish()
    agent.tool.end()
    check("late" in scene.run("report", "hq.cap", "--calls"), "no name")


@case
def several_ids_may_mean_one_signature(scene):
    run(scene, [(METHOD, 1, "f [app]"), (METHOD, 2, "f [app]"), (ENTRY, 1, 0, 1, 0), (EXIT, 1, 1, 1, 1, 0),
                (ENTRY, 1, 2, 2, 0), (EXIT, 1, 3, 2, 1, 0)])
    equal(replayed(scene).told()[-4:-1], ["0 -f [app]:1", "0 +f [app]", "0 -f [app]:1"])


@case
def sequence_ids_order_what_several_connections_bring(scene):
    calls = []
    for at in range(500):
        calls += [(ENTRY, at, 2 * at, 1 + at % 2, 0), (EXIT, at, 2 * at + 1, 1 + at % 2, 5, 0)]
    run(scene, NAMES + calls, "--strict", connections=4)
    told = [line for line in replayed(scene).told() if not line.startswith("mark")]
    equal(len(told), 1000)


@case
def texts_are_modified_utf8_of_their_encoded_length(scene):
    longest = "\u20ac" * 21844 + "abc"
    equal(len(wire.text(longest)) - 2, 65535)
    names = ["nul\0nul", "\u00e9\u20ac\U0001f438", longest]
    messages = [(METHOD, at + 1, name) for at, name in enumerate(names)]
    for at in range(len(names)):
        messages += [(ENTRY, 1, 2 * at, at + 1, 0), (EXIT, 1, 2 * at + 1, at + 1, 1, 0)]
    run(scene, messages, "--strict")
    back = list(replayed(scene).names[METHOD].values())
    equal([name.split(" [")[0] for name in back[:2]], names[:2])
    # It has grown by an object file: cut between characters.
    check(back[2].startswith("\u20ac" * 1000) and len(wire.text(back[2])) - 2 <= 65535, len(wire.text(back[2])))


@case
def a_byte_at_a_time_is_as_good(scene):
    tool = scene.hq("--strict")
    agent = Agent(scene, tool).start().open()
    for message in NAMES + [(ENTRY, 1, 0, 1, 0), (MARKER, 1, 1, "k", "v"), (EXIT, 2, 2, 1, 7, 0)]:
        for byte in wire.message(*message):
            agent.data[0].raw(bytes([byte]))
    agent.finish()
    check("run 0 is complete: 7 messages" in tool.end(), tool.lines)


@case
def a_data_break_forgets_what_is_open(scene):
    run(scene, NAMES + [
        (ENTRY, 1, 0, 1, 0), (MARKER, 2, 1, "recording resumed", ""), (ENTRY, 3, 2, 2, 0), (EXIT, 4, 3, 2, 9, 0),
    ], "--strict", breaks=[2])
    calls = scene.run("report", "hq.cap", "--calls")
    check("1 gap of" in calls, calls)


@case
def classes_are_informational_on_control(scene):
    agent = Agent(scene, scene.hq("--strict")).start().open()
    for kind in (wire.TRANSFORMED, wire.IGNORED, wire.FAILED):
        agent.control.send(kind, "demo/Demo")
    agent.finish()
    agent.tool.end()


@case
def heartbeats_that_are_missing_are_told(scene):
    tool = scene.hq("--heartbeat", "50")
    agent = Agent(scene, tool).start().open()
    tool.said("unhealthy")
    agent.mode("T")
    tool.said("heartbeats come again")
    agent.finish()
    tool.end()


@case
def a_mode_that_is_unknown_ends_the_run(scene):
    agent = Agent(scene, scene.hq()).start().open()
    agent.mode("Q")
    outcome(agent, "failed")


@case
def an_error_ends_the_run_and_all_connections(scene):
    agent = Agent(scene, scene.hq()).start().open(2)
    agent.control.send(ERROR, "the agent is \u00e9\U0001f438")
    for line in [agent.control, *agent.data]:
        line.gone()
    outcome(agent, "the agent is \u00e9\U0001f438")


@case
def the_end_of_control_before_the_last_heartbeat_is_a_failure(scene):
    agent = Agent(scene, scene.hq()).start().open()
    agent.data[0].send(ENTRY, 1, 0, 1, 0)
    agent.control.close()
    outcome(agent, "run 0 failed")
    check("method 1" in scene.run("report", "hq.cap", "--calls"), "what came is not kept")


def strict(scene, messages, words, control=(), connections=1):
    """A strict run that these messages end."""
    agent = Agent(scene, scene.hq("--strict")).start().open(connections)
    for message in control:
        agent.control.send(*message)
    try:
        for at, message in enumerate(messages):
            raw = message if isinstance(message, bytes) else wire.message(*message)
            agent.data[at % connections].raw(raw)
        agent.mode("X")
        for line in agent.data:
            line.socket.shutdown(socket.SHUT_WR)
    except OSError:
        # It is closed already, because of the fault.
        pass
    outcome(agent, words)


@case
def a_sequence_id_that_is_missing_is_a_fault(scene):
    strict(scene, [(ENTRY, 1, 0, 1, 0), (EXIT, 1, 3, 1, 1, 0)], "sequence ids 1 to 2 did not come")


@case
def a_sequence_id_that_comes_twice_is_a_fault(scene):
    strict(scene, [(ENTRY, 1, 0, 1, 0), (EXIT, 1, 0, 1, 1, 0)], "sequence id 0 came twice")


@case
def an_exit_of_another_method_is_a_fault(scene):
    strict(scene, [(ENTRY, 1, 0, 1, 0), (EXIT, 1, 1, 2, 1, 0)], "thread 0 left method 2 while in 1")


@case
def a_bubble_of_another_method_is_a_fault(scene):
    strict(scene, [(ENTRY, 1, 0, 1, 9), (BUBBLE, 1, 1, 2, 1, 9)], "thread 9 left method 2 while in 1")


@case
def a_break_on_a_data_connection_is_a_fault(scene):
    strict(scene, [(DATA_BREAK, 5)], "a data break on a data connection")


@case
def a_break_that_is_too_late_is_a_fault(scene):
    strict(scene, [], "a data break at 0 when 0 is the next one", control=[(DATA_BREAK, 0)])


@case
def a_break_before_the_last_one_is_a_fault(scene):
    strict(scene, [], "a data break at -7 after one at 5", control=[(DATA_BREAK, 5), (DATA_BREAK, 0xFFFFFFF9)])


@case
def data_on_control_is_a_fault(scene):
    strict(scene, [], "on a control connection", control=[(ENTRY, 1, 0, 1, 0)])


@case
def control_on_a_data_connection_is_a_fault(scene):
    for message in ((HEARTBEAT, ord("T"), 0), (wire.TRANSFORMED, "a"), (HELLO, 1)):
        strict(scene, [message], "on a data connection")


@case
def an_unknown_message_is_a_fault(scene):
    strict(scene, [b"\xfa"], "250")


@case
def text_of_four_byte_utf8_is_a_fault(scene):
    raw = "\U0001f438".encode()
    strict(scene, [bytes([METHOD, 0, 0, 0, 1, 0, len(raw)]) + raw], "failed")


@case
def a_message_that_is_cut_off_is_a_fault(scene):
    strict(scene, [wire.message(ENTRY, 1, 0, 1, 0)[:9]], "failed")


@case
def without_strict_faults_are_counted_and_the_rest_is_kept(scene):
    agent = Agent(scene, scene.hq()).start().open()
    for message in NAMES + [(ENTRY, 1, 0, 1, 0), (EXIT, 1, 3, 1, 1, 0), (ENTRY, 2, 4, 2, 0), (EXIT, 2, 5, 2, 1, 0)]:
        agent.data[0].send(*message)
    agent.finish()
    said = agent.tool.end()
    check("sequence ids 1 to 2 did not come" in said, said)
    calls = scene.run("report", "hq.cap", "--calls")
    check("2 calls" in calls, calls)
