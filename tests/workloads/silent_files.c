// A program that has mapped a file whose server falls silent: it does not answer who opens it (open), asks for
// its attributes (attributes) or reads it (read), nor who executes it (exec: with the parent of a vfork that waits
// for that), nor who reads the memory of this process, while another thread waits to map something (locked), nor who reads its table of
// sections (sections), nor who asks what file system it is (statfs); or nothing at all from SIGUSR1 on (later).
// With "overlay" the file is seen by an overlay over that server, as any user can mount it.
// With "debug" nothing of it is mapped: the server has the folder of separate debug files, and may not even say what is in
// it (lookup).
// Usage: silent_files KIND [overlay | debug]; uses a processor for a minute after "ready" (status 77 without FUSE).
#define _GNU_SOURCE
#include <elf.h>
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

// Many pages at a time: a file of them one by one takes whoever runs beside off their processors 30,000 times.
enum { LENGTH = 64 << 20, SECTIONS = 32 << 20, PAGE = 4096, PIECE = 1 << 17 };

static const char *kind;
// 0: all is answered, 1: not what the kind says, 2: nothing.
static volatile int *silence;
static char *page;
static int is_debug;

static int is(const char *one) { return !strcmp(kind, one); }

static int is_silent(const struct fuse_in_header *head, uint64_t offset) {
    if (!*silence) return 0;
    // Else its own end would wait, too.
    if (*silence == 2) return head->opcode != FUSE_FLUSH && head->opcode != FUSE_RELEASE;
    switch (head->opcode) {
    case FUSE_LOOKUP: return is("lookup");
    case FUSE_OPEN: return is("open");
    case FUSE_STATFS: return is("statfs");
    case FUSE_GETATTR: return is("attributes");
    case FUSE_READ: return is("read") || is("exec") || is("locked") || (is("sections") && offset >= SECTIONS);
    default: return 0;
    }
}

// A file system of one file: this program, as if it were long; as a debug file it is in whatever folder.
static void serve(int fuse) {
    static struct { struct fuse_in_header head; union { struct fuse_read_in read; char rest[PIECE]; }; } asked;
    static char contents[PIECE];
    int program = open("/proc/self/exe", O_RDONLY);
    // Who waits for it can't even end before it does.
    alarm(is("locked") ? 5 : 60);
    uint64_t folders = 2;
    unsigned valid = is("attributes") ? 0 : 99;
    struct fuse_attr file = {.ino = 2, .size = LENGTH, .blocks = 8, .mode = S_IFREG | 0555, .nlink = 1};
    struct fuse_attr folder = {.ino = 1, .mode = S_IFDIR | 0755, .nlink = 1};
    while (read(fuse, &asked, sizeof asked) > 0) {
        struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = PAGE, .max_readahead = PIECE};
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 99, .attr_valid = valid, .attr = file};
        struct fuse_attr_out attr = {.attr_valid = valid, .attr = asked.head.nodeid == 2 ? file : folder};
        struct fuse_open_out opened = {0};
        struct fuse_statfs_out statfs = {.st = {.namelen = 255}};
        struct fuse_out_header head = {.len = sizeof head, .unique = asked.head.unique};
        struct iovec said[2] = {{&head, sizeof head}, {NULL, 0}};
        if (asked.head.opcode == FUSE_FORGET || asked.head.opcode == FUSE_BATCH_FORGET
            || is_silent(&asked.head, asked.read.offset)) continue;
        switch (asked.head.opcode) {
        case FUSE_STATFS: said[1] = (struct iovec){&statfs, sizeof statfs}; break;
        case FUSE_INIT: said[1] = (struct iovec){&init, sizeof init}; break;
        case FUSE_LOOKUP:
            if (is_debug && !strstr(asked.rest, ".debug")) entry.nodeid = folder.ino = ++folders, entry.attr = folder;
            said[1] = (struct iovec){&entry, sizeof entry}; break;
        case FUSE_GETATTR: said[1] = (struct iovec){&attr, sizeof attr}; break;
        case FUSE_OPEN: said[1] = (struct iovec){&opened, sizeof opened}; break;
        case FUSE_READ: {
            uint64_t size = asked.read.size < sizeof contents ? asked.read.size : sizeof contents;
            memset(contents, 0, size);
            if (pread(program, contents, size, (off_t)asked.read.offset) < 0) head.error = -EIO;
            if (asked.read.offset == 0 && is("sections")) ((Elf64_Ehdr *)contents)->e_shoff = SECTIONS;
            said[1] = (struct iovec){contents, size};
            break;
        }
        default: head.error = -ENOSYS;
        }
        head.len += said[1].iov_len;
        if (writev(fuse, said, 2) < 0) break;
    }
    _exit(0);
}

static void fall_silent(int signal) {
    (void)signal;
    *silence = 2;
}

static void *execute(void *nothing) {
    if (!vfork()) {
        execl("/mnt/file", "file", NULL);
        _exit(1);
    }
    return nothing;
}

// Read this way, memory is held until the page is there.
static void *touch(void *nothing) {
    char byte;
    int memory = open("/proc/self/mem", O_RDONLY);
    if (pread(memory, &byte, 1, (off_t)(uintptr_t)(page + SECTIONS)) < 0) perror("memory");
    return nothing;
}

static void *map(void *nothing) {
    for (;;) munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
    return nothing;
}

static int write_to(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    int written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    close(file);
    return !written;
}

// In a namespace of users of its own, as who is not root has to.
static int make_user(void) {
    return unshare(CLONE_NEWUSER) || write_to("/proc/self/setgroups", "deny") || write_to("/proc/self/uid_map", "0 0 1")
        || write_to("/proc/self/gid_map", "0 0 1");
}

// A third of a processor: it is there for much longer than it is recorded.
__attribute__((noinline)) void beside_silence(void) {
    for (int turns = 0; turns < 60 * 1000 / 12; turns++) {
        struct timespec from, now;
        clock_gettime(CLOCK_MONOTONIC, &from);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - from.tv_sec) * 1000000000 + now.tv_nsec - from.tv_nsec < 4000000);
        usleep(8000);
    }
}

int main(int count, char **arguments) {
    kind = count > 1 ? arguments[1] : "";
    int overlay = count > 2 && !strcmp(arguments[2], "overlay");
    is_debug = count > 2 && !strcmp(arguments[2], "debug");
    // Else it would need memory.
    setvbuf(stdout, NULL, _IONBF, 0);
    silence = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (overlay && make_user()) return 77;
    int fuse = open("/dev/fuse", O_RDWR);
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fuse, PIECE);
    // Nobody else sees it, and it goes with this process.
    if (fuse < 0 || unshare(CLONE_NEWNS) || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL)
        || mount("silent", is_debug ? "/usr/lib/debug" : "/mnt", "fuse", MS_NOSUID | MS_NODEV, options)) return 77;
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fuse);
    }
    close(fuse);
    // It takes two layers.
    if (overlay && mount("over", "/mnt", "overlay", 0, "lowerdir=/mnt:/etc")) return 77;
    signal(SIGUSR1, fall_silent);
    if (!is_debug) {
        int file = open("/mnt/file", O_RDONLY);
        page = mmap(NULL, LENGTH, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
        if (file < 0 || page == MAP_FAILED || page[1] != 'E') return 77;
    }
    *silence = is("later") ? 0 : 1;
    pthread_t thread;
    if (is("exec")) pthread_create(&thread, NULL, execute, NULL);
    if (is("locked")) {
        pthread_create(&thread, NULL, touch, NULL);
        usleep(100000);
        pthread_create(&thread, NULL, map, NULL);
        usleep(100000);
    }
    puts("ready");
    beside_silence();
    return 0;
}
