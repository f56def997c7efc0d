/* Guard pages around what torch allocates: an access out of bounds ends the process at once.

   LD_PRELOADed. posix_memalign takes memory from an arena in which a page without access follows (or
   precedes) each allocation. Allocations end at the page's end and begin at its start by turns.
   Freed memory loses its access, so that a use of it ends the process, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA (1ul << 38)
#define PAGE 4096ul
#define LARGEST (1ul << 24)

static char *arena;
static _Atomic size_t used;
static _Atomic unsigned turn;

static void (*real_free)(void *);

__attribute__((constructor)) static void reserve(void) {
    arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) arena = NULL;
    real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

static int is_guarded(const void *p) { return arena && (const char *)p >= arena && (const char *)p < arena + ARENA; }

int posix_memalign(void **out, size_t alignment, size_t size) {
    if (size > LARGEST) return ENOMEM;
    if (size == 0) size = 1;
    size_t pages = (size + PAGE - 1) / PAGE;
    /* page with the length, guard, data, guard */
    size_t total = (pages + 3) * PAGE;
    size_t at = atomic_fetch_add(&used, total);
    if (!arena || at + total > ARENA) return ENOMEM;
    char *head = arena + at, *data = head + 2 * PAGE;
    if (mprotect(head, PAGE, PROT_READ | PROT_WRITE) || mprotect(data, pages * PAGE, PROT_READ | PROT_WRITE)) return ENOMEM;
    size_t grain = alignment > 8 ? 8 : alignment;
    size_t skip = (atomic_fetch_add(&turn, 1) & 1) ? 0 : (pages * PAGE - size) / grain * grain;
    memset(data, 0x5a, pages * PAGE);
    ((size_t *)head)[0] = pages;
    *out = data + skip;
    return 0;
}

void free(void *p) {
    if (!is_guarded(p)) {
        if (!real_free) real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
        real_free(p);
        return;
    }
    /* The head lies two pages before the page that the data begins in: no larger skip than a page is made. */
    char *data = (char *)((uintptr_t)p & ~(PAGE - 1));
    char *head = data - 2 * PAGE;
    size_t pages = ((size_t *)head)[0];
    mmap(head, (pages + 3) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
