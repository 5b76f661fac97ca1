/* Walks stacks with elfutils' libdwfl: the judge of our own unwinder, with which it shares no code.
 *
 * Standard input: records, native byte order, each begun by a u32 that says what it is.
 *   1  the executable mappings of a process, in place of those that it had:
 *      u32 process, u32 count, count x { u64 start, u64 end, u64 file offset, u32 length, path }
 *   2  a sample: u32 number, u32 process, u64 pc, u64 registers[16] by DWARF's number,
 *      u32 length, memory from 512 bytes below the stack pointer upwards
 * Standard output: a line for each sample, in their order:
 *   number, why the walk ended, then each address in hexadecimal, leaf first, with '!' behind a caller
 *   that a signal has interrupted (whose address is no return address).
 * Why a walk ended: "end" (the outermost frame), "memory ADDRESS" (which the copy does not have),
 *   "error TEXT" (libdwfl's), "limit".
 *
 * All that is read besides is the mapped files. Debug files are not looked for: rows come from the
 * files that our own tables are made of.
 */

#include <elfutils/libdwfl.h>
#include <errno.h>
#include <fcntl.h>
#include <gelf.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAPPINGS = 1, SAMPLE = 2 };
/* Registers that a leaf has popped already are below the stack pointer. */
enum { BELOW = 512 };
enum { REGISTERS = 16, SP = 7, MAX_FRAMES = 4096, MAX_PATH = 4096, MAX_COPY = 1 << 20 };

struct sample {
    uint32_t number, process;
    uint64_t pc, registers[REGISTERS];
    uint32_t len;
    unsigned char *memory;
};

/* A file that was reported. */
struct file {
    char *path;
    struct file *next;
};

struct process {
    uint32_t id;
    Dwfl *dwfl;
    struct file *files;
    struct process *next;
};

static struct process *processes;
/* What the callbacks of libdwfl work on. */
static struct sample sample;
static struct {
    uint64_t pc[MAX_FRAMES];
    bool exact[MAX_FRAMES];
    unsigned count;
    bool lacked;
    uint64_t lacked_at;
} walk;

static void fail(const char *what)
{
    fprintf(stderr, "walk: %s\n", what);
    exit(1);
}

/* False at the end of the input, if it ends between records. */
static bool get(void *into, size_t len)
{
    size_t got = fread(into, 1, len, stdin);
    if (got != len && (got > 0 || ferror(stdin)))
        fail("the input ends within a record");
    return got == len;
}

static void need(void *into, size_t len)
{
    if (!get(into, len) && len > 0)
        fail("the input ends within a record");
}

/* Debug files: none. */
static int no_debuginfo(Dwfl_Module *mod, void **userdata, const char *name, Dwarf_Addr base,
                        const char *file, const char *link, GElf_Word crc, char **found)
{
    (void)mod, (void)userdata, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
    return -1;
}

static const Dwfl_Callbacks callbacks = {
    .find_elf = dwfl_build_id_find_elf,
    .find_debuginfo = no_debuginfo,
    .section_address = dwfl_offline_section_address,
};

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread_arg)
{
    (void)dwfl, (void)arg;
    /* There is one. */
    if (*thread_arg != NULL)
        return 0;
    *thread_arg = &sample;
    return 1;
}

static bool get_thread(Dwfl *dwfl, pid_t tid, void *arg, void **thread_arg)
{
    (void)dwfl, (void)tid, (void)arg;
    *thread_arg = &sample;
    return true;
}

static bool memory_read(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *result, void *arg)
{
    (void)dwfl, (void)arg;
    uint64_t first = sample.registers[SP] - BELOW;
    if (address < first || address - first > sample.len || sample.len - (address - first) < 8) {
        /* It may be a register that nobody needs: what was lacking only counts if no frame follows. */
        walk.lacked = true;
        walk.lacked_at = address;
        return false;
    }
    memcpy(result, sample.memory + (address - first), 8);
    return true;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
    (void)arg;
    Dwarf_Word registers[REGISTERS + 1];
    for (int i = 0; i < REGISTERS; i++)
        registers[i] = sample.registers[i];
    /* The column of the return address. */
    registers[REGISTERS] = sample.pc;
    if (!dwfl_thread_state_registers(thread, 0, REGISTERS + 1, registers))
        return false;
    dwfl_thread_state_register_pc(thread, sample.pc);
    return true;
}

static const Dwfl_Thread_Callbacks thread_callbacks = {
    .next_thread = next_thread,
    .get_thread = get_thread,
    .memory_read = memory_read,
    .set_initial_registers = set_registers,
};

static int on_frame(Dwfl_Frame *state, void *arg)
{
    (void)arg;
    Dwarf_Addr pc;
    bool exact;
    /* Asking for the address already looks for the caller. */
    walk.lacked = false;
    if (!dwfl_frame_pc(state, &pc, &exact))
        return DWARF_CB_ABORT;
    if (walk.count == MAX_FRAMES)
        return DWARF_CB_ABORT;
    walk.pc[walk.count] = pc;
    walk.exact[walk.count] = exact;
    walk.count++;
    return DWARF_CB_OK;
}

static void walk_sample(Dwfl *dwfl)
{
    walk.count = 0;
    walk.lacked = false;
    int status = dwfl_getthread_frames(dwfl, 1, on_frame, NULL);
    printf("%" PRIu32 " ", sample.number);
    /* A return address that could not be read is to libdwfl as good as none at all: the end. */
    if (walk.lacked)
        printf("memory %" PRIx64, walk.lacked_at);
    else if (status == 0)
        printf("end");
    else if (walk.count == MAX_FRAMES)
        printf("limit");
    else
        printf("error %s", status < 0 ? dwfl_errmsg(-1) : "stopped");
    putchar('\t');
    for (unsigned i = 0; i < walk.count; i++)
        printf("%s%" PRIx64 "%s", i ? " " : "", walk.pc[i], i > 0 && walk.exact[i] ? "!" : "");
    putchar('\n');
}

/* What is to be added to the file's own addresses; false if the file does not map that offset. */
static bool bias_of(int fd, uint64_t start, uint64_t offset, uint64_t *bias)
{
    Elf *elf = elf_begin(fd, ELF_C_READ_MMAP, NULL);
    size_t count;
    bool found = false;
    if (elf != NULL && elf_getphdrnum(elf, &count) == 0)
        for (size_t i = 0; i < count && !found; i++) {
            GElf_Phdr phdr;
            if (gelf_getphdr(elf, (int)i, &phdr) == NULL || phdr.p_type != PT_LOAD)
                continue;
            uint64_t first = phdr.p_offset & ~UINT64_C(4095);
            if (offset < first || offset >= phdr.p_offset + phdr.p_filesz)
                continue;
            if (!(phdr.p_flags & PF_X))
                continue;
            *bias = start - (phdr.p_vaddr - phdr.p_offset + offset);
            found = true;
        }
    elf_end(elf);
    return found;
}

/* A file is reported once. What it maps a second time, elsewhere (V8 does so with its built-in
   functions), libdwfl can't have: there it follows frame pointers. */
static void report(struct process *process, const char *path, uint64_t start, uint64_t offset)
{
    for (struct file *file = process->files; file != NULL; file = file->next)
        if (strcmp(file->path, path) == 0)
            return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "walk: open %s: %s\n", path, strerror(errno));
        return;
    }
    uint64_t bias;
    if (!bias_of(fd, start, offset, &bias)) {
        close(fd);
        return;
    }
    /* Takes the descriptor over. */
    if (dwfl_report_elf(process->dwfl, path, path, fd, bias, true) == NULL) {
        fprintf(stderr, "walk: report %s: %s\n", path, dwfl_errmsg(-1));
        close(fd);
        return;
    }
    struct file *file = malloc(sizeof *file);
    if (file == NULL || (file->path = strdup(path)) == NULL)
        fail("out of memory");
    file->next = process->files;
    process->files = file;
}

static void read_mappings(void)
{
    uint32_t id, count;
    need(&id, sizeof id);
    need(&count, sizeof count);
    struct process *process = processes;
    while (process != NULL && process->id != id)
        process = process->next;
    if (process == NULL) {
        process = calloc(1, sizeof *process);
        if (process == NULL)
            fail("out of memory");
        process->id = id;
        process->next = processes;
        processes = process;
    } else {
        dwfl_end(process->dwfl);
        while (process->files != NULL) {
            struct file *file = process->files;
            process->files = file->next;
            free(file->path);
            free(file);
        }
    }
    process->dwfl = dwfl_begin(&callbacks);
    if (process->dwfl == NULL)
        fail(dwfl_errmsg(-1));
    dwfl_report_begin(process->dwfl);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t start, end, offset;
        uint32_t len;
        char path[MAX_PATH];
        need(&start, sizeof start);
        need(&end, sizeof end);
        need(&offset, sizeof offset);
        need(&len, sizeof len);
        if (len >= MAX_PATH)
            fail("a path is too long");
        need(path, len);
        path[len] = 0;
        report(process, path, start, offset);
    }
    dwfl_report_end(process->dwfl, NULL, NULL);
}

static void read_sample(void)
{
    need(&sample.number, sizeof sample.number);
    need(&sample.process, sizeof sample.process);
    need(&sample.pc, sizeof sample.pc);
    need(sample.registers, sizeof sample.registers);
    need(&sample.len, sizeof sample.len);
    if (sample.len > MAX_COPY)
        fail("a copy of a stack is too long");
    need(sample.memory, sample.len);
    struct process *process = processes;
    while (process != NULL && process->id != sample.process)
        process = process->next;
    if (process == NULL)
        fail("a sample of an unknown process");
    /* Once for a Dwfl; the callbacks find the present sample themselves. */
    static Elf *no_elf = NULL;
    if (dwfl_pid(process->dwfl) < 0
        && !dwfl_attach_state(process->dwfl, no_elf, 1, &thread_callbacks, &sample))
        fail(dwfl_errmsg(-1));
    walk_sample(process->dwfl);
}

int main(void)
{
    elf_version(EV_CURRENT);
    sample.memory = malloc(MAX_COPY);
    if (sample.memory == NULL)
        fail("out of memory");
    uint32_t kind;
    while (get(&kind, sizeof kind)) {
        switch (kind) {
        case MAPPINGS:
            read_mappings();
            break;
        case SAMPLE:
            read_sample();
            break;
        default:
            fail("a record of an unknown kind");
        }
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
