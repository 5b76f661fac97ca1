# Programs of Debian and of this project, traced on another kernel and compared with a run that is not.
#
# `sh programs.sh FOLDER` in the machine that `cargo xtask vm` boots -> a line for each run, and the status of the
# whole. What a kernel without probes of many places at once is asked for is little: it takes a tenth of a
# second to let go of each.
#
# What does not belong here: what the kernel side does by itself (the test executable `probes`).

# Where the project's own programs lie.
own=${1%/}
failed=0
cd "$(mktemp -d)" || exit 1
seq 1 2000 | awk '{ print ($1 * 7919) % 2003, "line", $1, sprintf("%c%c", 97 + $1 % 26, 97 + $1 % 7) }' >lines
printf 'BEGIN { while (i < 300) { s += length("x" i); i++ } print s }\n' >sum.awk

wrong() {
    echo "FAILED: $*"
    sed 's/^/    /' said | tail -n 12
    failed=1
}

# All places that have a name, where letting go of them takes no time; else what has hurt programs before:
# the dynamic linker's own, and what everybody calls.
many=no
profiler doctor | grep -q 'thousands of places by one link' && many=yes
echo "programs: many places at once: $many"

# unharmed WAY COMMAND..: the same output and status, traced and not.
unharmed() {
    way=$1
    shift
    "$@" >plain 2>plain.errors </dev/null
    plain=$?
    if [ "$many" = yes ]; then
        set -- --trace '*' --yes -- "$@"
    else
        set -- --trace 'ld-linux*:_dl_*' --trace 'libc.so.6:mem*' --yes -- "$@"
    fi
    rm -f out.cap
    profiler record --no-samples --returns "$way" -o out.cap "$@" >traced 2>said </dev/null
    traced=$?
    name="$way: $(echo "$*" | sed 's/.* -- //')"
    calls=$(profiler report --calls out.cap 2>/dev/null | grep -c '[0-9]')
    if [ "$plain" != "$traced" ]; then
        wrong "$name: status $traced, without us $plain"
    elif ! cmp -s plain traced; then
        wrong "$name: another output"
    elif [ "$calls" -lt 5 ]; then
        wrong "$name: $calls lines of calls"
    else
        echo "unharmed: $name ($calls lines of calls)"
    fi
}

for way in auto ret-insn uretprobe; do
    unharmed $way /usr/bin/ls -lan /usr/bin
    unharmed $way /usr/bin/sort -n lines
    unharmed $way /usr/bin/gzip -nc lines
    unharmed $way /usr/bin/sed -n 's/line \([0-9]*\)/\1!/p' lines
    unharmed $way /usr/bin/mawk -f sum.awk
    unharmed $way /usr/bin/dash -c 'for i in 1 2 3; do (exit $i); echo $i $?; done; exit 9'
done

# Values below the stack pointer, around places of every sort.
for way in auto ret-insn uretprobe none; do
    rm -f out.cap
    profiler record --no-samples --budget off --returns $way -o out.cap --trace 'usdt:trace_redzone:*' \
        --trace 'leaf_*' --trace 'frame_*' -- "$own/trace_redzone" 200 >traced 2>said </dev/null
    status=$?
    if [ $status = 0 ] && grep -q '"good": true' traced; then
        echo "right: $way: trace_redzone 200"
    else
        cat traced
        wrong "$way: trace_redzone 200: status $status"
    fi
done

# A recording ends while a call of its target is open, and can be read.
for way in uretprobe ret-insn; do
    rm -f out.cap
    profiler record --no-samples --budget off --returns $way -d 3 -o out.cap --trace trace_long:inner \
        --trace trace_long:outer -- "$own/trace_long" 120000 >truth 2>said </dev/null &
    recorder=$!
    # It is whole long before the command, whose end the recorder waits for, has ended.
    tries=0
    until profiler info out.cap 2>/dev/null | grep -q '^complete *yes' || [ $tries = 40 ]; do
        sleep 0.5
        tries=$((tries + 1))
    done
    calls=$(profiler report --calls out.cap 2>/dev/null | grep -c inner)
    kill -USR1 $(pidof "$own/trace_long") 2>/dev/null || wrong "$way: trace_long: its call was over first"
    wait $recorder
    status=$?
    if [ $status = 7 ] && [ "$calls" -gt 0 ] && grep -q '"good": true' truth; then
        echo "in time: $way: trace_long: recorded$(grep -o ' in [0-9.]* s' said | head -n 1)"
    else
        wrong "$way: trace_long: status $status, $calls lines of calls"
    fi
done

echo "programs: $failed"
exit $failed
