/* Lets the n-th system call of a kind on files below a folder fail, or do half of what it was asked for. For LD_PRELOAD;
   see syscall_faults.py. No flush reaches the disk: a sweep has no time for that. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FLUSH, RENAME, REMOVE, MKDIR, RESERVE, RESIZE, MAP, KINDS };
#define HALF -1

static atomic_int watching;
static atomic_long counts[KINDS], hits;
static char folder[4096];
static int chosen = -1, failure, forever;
static long nth;

void chaos_watch(const char *below, int kind, long number, int error, int always) {
    atomic_store(&watching, 0);
    strncpy(folder, below, sizeof folder - 1);
    for (int i = 0; i < KINDS; i++) atomic_store(&counts[i], 0);
    atomic_store(&hits, 0);
    chosen = kind, nth = number, failure = error, forever = always;
    atomic_store(&watching, 1);
}

long chaos_stop(long *seen) {
    atomic_store(&watching, 0);
    for (int i = 0; i < KINDS; i++) seen[i] = atomic_load(&counts[i]);
    return atomic_load(&hits);
}

/* 0, or what the call fails with. */
static int fails(int kind, const char *path) {
    if (strncmp(path, folder, strlen(folder))) return 0;
    long number = atomic_fetch_add(&counts[kind], 1) + 1;
    if (kind != chosen || (forever ? number < nth : number != nth)) return 0;
    atomic_fetch_add(&hits, 1);
    return failure;
}

static int named(int kind, int at, const char *path) {
    if (!atomic_load(&watching) || !path) return 0;
    if (path[0] == '/') return fails(kind, path);
    char link[64], whole[8192];
    if (at == AT_FDCWD) return 0;
    strcpy(link, "/proc/self/fd/");
    char digits[16]; int length = 0, rest = at, place = strlen(link);
    do digits[length++] = '0' + rest % 10; while (rest /= 10);
    while (length) link[place++] = digits[--length];
    link[place] = 0;
    long found = syscall(SYS_readlinkat, AT_FDCWD, link, whole, 4096);
    if (found < 0) return 0;
    whole[found] = 0;
    return fails(kind, whole);
}

static int opened(int kind, int descriptor) {
    if (!atomic_load(&watching) || descriptor < 0) return 0;
    int before = errno, found = named(kind, descriptor, "");
    errno = before;
    return found;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define GIVE(found) do { if (found) { errno = found; return -1; } } while (0)

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int found = named(OPEN, AT_FDCWD, path); GIVE(found); \
        return real(path, flags, mode); }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int at, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int found = named(OPEN, at, path); GIVE(found); \
        return real(at, path, flags, mode); }
OPENS_AT(openat)
OPENS_AT(openat64)

#define MOVES(name, kind, type) \
    ssize_t name(int file, type bytes, size_t size) { \
        REAL(name); int found = opened(kind, file); \
        if (found == HALF) { if (size > 1) size /= 2; found = 0; } \
        GIVE(found); return real(file, bytes, size); }
MOVES(read, READ, void *)
MOVES(write, WRITE, const void *)

#define MOVES_AT(name, kind, type, place) \
    ssize_t name(int file, type bytes, size_t size, place at) { \
        REAL(name); int found = opened(kind, file); \
        if (found == HALF) { if (size > 1) size /= 2; found = 0; } \
        GIVE(found); return real(file, bytes, size, at); }
MOVES_AT(pread, READ, void *, off_t)
MOVES_AT(pread64, READ, void *, off64_t)
MOVES_AT(pwrite, WRITE, const void *, off_t)
MOVES_AT(pwrite64, WRITE, const void *, off64_t)

/* Half of the first vector: a page that is torn. */
#define MOVES_VECTORS(name, kind, place) \
    ssize_t name(int file, const struct iovec *parts, int count, place at) { \
        REAL(name); int found = opened(kind, file); \
        if (found == HALF) { \
            struct iovec half = {parts[0].iov_base, parts[0].iov_len / 2 / 512 * 512}; \
            return real(file, half.iov_len ? &half : parts, 1, at); } \
        GIVE(found); return real(file, parts, count, at); }
MOVES_VECTORS(preadv, READ, off_t)
MOVES_VECTORS(preadv64, READ, off64_t)
MOVES_VECTORS(pwritev, WRITE, off_t)
MOVES_VECTORS(pwritev64, WRITE, off64_t)

#define MOVES_VECTORS_SO(name, kind, place) \
    ssize_t name(int file, const struct iovec *parts, int count, place at, int how) { \
        REAL(name); int found = opened(kind, file); \
        if (found == HALF) { count = (count + 1) / 2; found = 0; } \
        GIVE(found); return real(file, parts, count, at, how); }
MOVES_VECTORS_SO(preadv2, READ, off_t)
MOVES_VECTORS_SO(preadv64v2, READ, off64_t)
MOVES_VECTORS_SO(pwritev2, WRITE, off_t)
MOVES_VECTORS_SO(pwritev64v2, WRITE, off64_t)

int fsync(int file) { int found = opened(FLUSH, file); GIVE(found); return 0; }
int fdatasync(int file) { int found = opened(FLUSH, file); GIVE(found); return 0; }

int rename(const char *from, const char *to) {
    REAL(rename); int found = named(RENAME, AT_FDCWD, from); GIVE(found); return real(from, to); }
int renameat(int at, const char *from, int other, const char *to) {
    REAL(renameat); int found = named(RENAME, at, from); GIVE(found); return real(at, from, other, to); }
int unlink(const char *path) {
    REAL(unlink); int found = named(REMOVE, AT_FDCWD, path); GIVE(found); return real(path); }
int rmdir(const char *path) {
    REAL(rmdir); int found = named(REMOVE, AT_FDCWD, path); GIVE(found); return real(path); }
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat); int found = named(REMOVE, at, path); GIVE(found); return real(at, path, flags); }
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir); int found = named(MKDIR, AT_FDCWD, path); GIVE(found); return real(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat); int found = named(MKDIR, at, path); GIVE(found); return real(at, path, mode); }

int posix_fallocate(int file, off_t at, off_t size) {
    REAL(posix_fallocate); int found = opened(RESERVE, file); return found ? found : real(file, at, size); }
int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(posix_fallocate64); int found = opened(RESERVE, file); return found ? found : real(file, at, size); }
int ftruncate(int file, off_t size) {
    REAL(ftruncate); int found = opened(RESIZE, file); GIVE(found); return real(file, size); }
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64); int found = opened(RESIZE, file); GIVE(found); return real(file, size); }
int truncate(const char *path, off_t size) {
    REAL(truncate); int found = named(RESIZE, AT_FDCWD, path); GIVE(found); return real(path, size); }
int truncate64(const char *path, off64_t size) {
    REAL(truncate64); int found = named(RESIZE, AT_FDCWD, path); GIVE(found); return real(path, size); }

void *mmap(void *where, size_t size, int access, int flags, int file, off_t at) {
    int found = flags & MAP_ANONYMOUS ? 0 : opened(MAP, file);
    if (found) { errno = found; return MAP_FAILED; }
    return (void *)syscall(SYS_mmap, where, size, access, flags, file, at); }
void *mmap64(void *where, size_t size, int access, int flags, int file, off64_t at) {
    return mmap(where, size, access, flags, file, at); }
