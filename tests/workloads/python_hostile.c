// A program that says it is CPython 3.11 and has nothing but traps: lists without end, pointers to
// nowhere, texts of 4 GiB, code in memory that never comes. Usage: python_hostile KIND; uses the processor
// for a second, if it is "silent" for a minute, after "ready" (status 77 where that memory can't be had).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t words[64]; } block;

extern const uint64_t Py_Version;
const uint64_t Py_Version = 0x030b02f0;
extern block _PyRuntime, PyCode_Type;
block _PyRuntime = {{1}};
block PyCode_Type = {{1}};
static block interpreter, threads[2], holder, frames[2], code, text;

static uint64_t at(const void *place) { return (uint64_t)place; }

// Uses the processor; what it has mapped changes all the time.
__attribute__((noinline)) static void spin(long seconds) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
        for (int i = 0; i < 1000; i++) clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < seconds * 1000000000L);
}

// A file system of one file, whose server answers everything but what asks for its contents: that it says, and refuses it at
// first, since who asks once more waits with the map of the memory locked.
static void serve(int fuse) {
    struct { struct fuse_in_header head; char rest[1 << 17]; } asked;
    struct fuse_attr file = {.ino = 2, .size = 4096, .blocks = 8, .mode = S_IFREG | 0444, .nlink = 1};
    int reads = 0;
    struct fuse_attr folder = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 1};
    while (read(fuse, &asked, sizeof asked) > 0) {
        struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = 4096};
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 99, .attr_valid = 99, .attr = file};
        struct fuse_attr_out attr = {.attr_valid = 99, .attr = asked.head.nodeid == 1 ? folder : file};
        struct fuse_open_out opened = {0};
        struct fuse_out_header head = {.len = sizeof head, .unique = asked.head.unique};
        struct iovec said[2] = {{&head, sizeof head}, {NULL, 0}};
        switch (asked.head.opcode) {
        case FUSE_FORGET: case FUSE_BATCH_FORGET: continue;
        case FUSE_READ:
            puts("asked");
            fflush(stdout);
            if (reads++) continue;
            head.error = -EIO;
            break;
        case FUSE_INIT: said[1] = (struct iovec){&init, sizeof init}; break;
        case FUSE_LOOKUP: said[1] = (struct iovec){&entry, sizeof entry}; break;
        case FUSE_GETATTR: said[1] = (struct iovec){&attr, sizeof attr}; break;
        case FUSE_OPEN: said[1] = (struct iovec){&opened, sizeof opened}; break;
        default: head.error = -ENOSYS;
        }
        head.len += said[1].iov_len;
        if (writev(fuse, said, 2) < 0) break;
    }
    _exit(0);
}

// A page that whoever touches it waits for, and nobody brings.
static void *silent_page(void) {
    int fuse = open("/dev/fuse", O_RDWR);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    // Nobody else sees it, and it goes with this process.
    if (fuse < 0 || unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL)
        || mount("silent", "/mnt", "fuse", MS_NOSUID | MS_NODEV, options)) _exit(77);
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fuse);
    }
    close(fuse);
    int file = open("/mnt/file", O_RDONLY);
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    if (file < 0 || page == MAP_FAILED) _exit(77);
    return page;
}

int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "";
    uint64_t self = (uint64_t)pthread_self();
    _PyRuntime.words[5] = at(&interpreter);
    interpreter.words[0] = at(&interpreter);
    interpreter.words[2] = at(&threads[0]);
    threads[0].words[1] = at(&threads[1]);
    threads[1].words[1] = at(&threads[0]);
    threads[1].words[19] = strcmp(kind, "threads") ? self : 0;
    threads[1].words[7] = at(&holder);
    holder.words[1] = at(&frames[0]);
    for (int i = 0; i < 2; i++) {
        frames[i].words[4] = at(&code);
        frames[i].words[6] = at(&frames[1 - i]);
        frames[i].words[7] = at(&code) + 184;
    }
    code.words[0] = 1;
    code.words[1] = at(&PyCode_Type);
    code.words[2] = UINT64_MAX;
    code.words[14] = code.words[16] = at(&text);
    code.words[17] = at(&text);
    // A text of 2^32 characters, of 4 bytes each, and bytes of that length.
    text.words[2] = 1ULL << 32;
    text.words[4] = 4 << 2 | 1 << 5;
    if (!strcmp(kind, "nowhere")) {
        holder.words[1] = UINT64_MAX - 63;
        threads[0].words[1] = 0x10;
        interpreter.words[0] = 8;
        code.words[14] = UINT64_MAX;
    }
    if (!strcmp(kind, "broken")) {
        frames[1].words[6] = 0xffffffffff600000;
        frames[1].words[4] = UINT64_MAX;
        code.words[16] = 0xffffffff80000000;
    }
    if (!strcmp(kind, "silent")) {
        uint64_t page = at(silent_page());
        for (int i = 0; i < 2; i++) {
            frames[i].words[4] = page;
            frames[i].words[7] = page + 184;
        }
        puts("ready");
        fflush(stdout);
        spin(60);
    }
    spin(1);
    return 0;
}
