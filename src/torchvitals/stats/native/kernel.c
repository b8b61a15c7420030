/* One call for a whole list of tensors: chunks over all of them are handed to the threads, each
 * chunk leaves its sums in a slot of its own, and the slots are added up in order at the end, so
 * the result is the same whichever thread did what.
 *
 * Threads are borrowed from the OpenMP runtime torch has loaded (docs/decisions/0002): the caller
 * passes the address of its GOMP_parallel. Without one, the call runs on the calling thread.
 */
#include "batch.h"

#include <stdlib.h>
#include <string.h>

#define ABI_VERSION 14

/* Below this many elements in all, waking other threads costs more than it saves. */
enum { ALONE = 32768 };

/* Chunks are shared out evenly, and in the same way at every step: a thread finds in its cache what
 * it wrote a step ago. Who is done with its own share helps with the next one. */
enum { SHARES = 64 };

typedef struct {
    int64_t taken;
    char rest[LINE_BYTES - sizeof(int64_t)]; /* threads that count on one line wait for each other */
} share;

typedef struct {
    const batch *b;
    const loops *loop;
    const int64_t *first; /* first chunk of each tensor; num + 1 entries */
    slot *slots;
    int num_shares, arrived;
    share shares[SHARES];
} job;

/* The share that a thread takes chunks of, and how many were found empty. */
typedef struct {
    int share, empty;
} hand;

EXPORT int torchvitals_abi(void) { return ABI_VERSION; }

static void merge(double *into, const double *from) {
    for (int i = 0; i < FIELDS; i++)
        if (i != MIN && i != MAX) into[i] += from[i];
    if (from[MIN] < into[MIN]) into[MIN] = from[MIN];
    if (from[MAX] > into[MAX]) into[MAX] = from[MAX];
}

static void begin(job *j, const batch *b, const int64_t *first, slot *slots) {
    j->b = b, j->loop = chosen_loops(), j->first = first, j->slots = slots;
    j->num_shares = b->threads < 1 ? 1 : b->threads < SHARES ? b->threads : SHARES;
    j->arrived = 0;
    for (int i = 0; i < j->num_shares; i++) j->shares[i].taken = 0;
}

static hand arrive(job *j) {
    const int before = __atomic_fetch_add(&j->arrived, 1, __ATOMIC_RELAXED);
    return (hand){before % j->num_shares, 0};
}

/* The next chunk to be done, or -1. */
static int64_t next_chunk(job *j, hand *h) {
    const int64_t chunks = j->first[j->b->num];
    for (; h->empty < j->num_shares; h->empty++, h->share = (h->share + 1) % j->num_shares) {
        const int64_t begin = chunks * h->share / j->num_shares;
        const int64_t end = chunks * (h->share + 1) / j->num_shares;
        const int64_t taken = __atomic_fetch_add(&j->shares[h->share].taken, 1, __ATOMIC_RELAXED);
        if (begin + taken < end) return begin + taken;
    }
    return -1;
}

/* The tensor a chunk belongs to; `k` is that of the chunk before. */
static int64_t tensor_of(const job *j, int64_t chunk, int64_t k) {
    if (chunk < j->first[k]) k = 0;
    while (chunk >= j->first[k + 1]) k++;
    return k;
}

static void leave(const batch *b, const loops *loop, desk *d) {
    if (d->tensor < 0) return;
    const int shared = b->count[d->tensor] > CHUNK;
    const int64_t at = d->tensor * NUM_BINS;
    if (b->bins) fold(loop, &d->fresh, b->bins + at, shared);
    if (b->delta_bins) fold(loop, &d->delta, b->delta_bins + at, shared);
    if (b->grad_bins) fold(loop, &d->grad, b->grad_bins + at, shared);
    d->tensor = -1;
}

/* Bins were written a step ago: they are asked for before they are needed. Inline, or the compiler
 * drops the call of a function that does nothing else. */
static inline __attribute__((always_inline)) void ask_for(const uint32_t *bins) {
    if (bins)
        for (int i = 0; i < NUM_BINS; i += LINE_BYTES / (int)sizeof *bins)
            __builtin_prefetch(bins + i, 1);
}

static void enter(const batch *b, int64_t k, desk *d) {
    const int64_t at = k * NUM_BINS;
    if (b->bins) ask_for(b->bins + at);
    if (b->delta_bins) ask_for(b->delta_bins + at);
    if (b->grad_bins) ask_for(b->grad_bins + at);
    d->tensor = k;
}

static void work(void *data) {
    job *j = data;
    const batch *b = j->b;
    desk d;
    hand h = arrive(j);
    d.tensor = -1;
    forget_counts(&d.fresh);
    forget_counts(&d.delta);
    forget_counts(&d.grad);
    int64_t chunk, k = 0;
    while ((chunk = next_chunk(j, &h)) >= 0) {
        k = tensor_of(j, chunk, k);
        if (d.tensor != k) {
            leave(b, j->loop, &d);
            enter(b, k, &d);
        }
        do_chunk(b, j->loop, k, (chunk - j->first[k]) * CHUNK, &d, j->slots + chunk);
        if (b->active && b->active[k].units && chunk == j->first[k])
            count_active(b, k, j->loop, d.wide);
    }
    leave(b, j->loop, &d);
}

/* Whether a tensor is the one before it: what a container hands on is its last child's output. Not
 * asked where counters are added to. */
static int is_again(const batch *b, int64_t k) {
    return b->thin && k > 0 && b->data[k] == b->data[k - 1] && b->count[k] == b->count[k - 1] &&
           b->dtype[k] == b->dtype[k - 1];
}

/* The first chunk of each tensor, and how many elements there are in all. */
static int64_t *first_chunks(const batch *b, int64_t *elements) {
    int64_t *first = malloc((size_t)(b->num + 1) * sizeof *first);
    if (!first) return NULL;
    first[0] = 0;
    for (int64_t k = 0; k < b->num; k++) {
        first[k + 1] = first[k];
        if (is_again(b, k)) continue;
        first[k + 1] += (b->count[k] + CHUNK - 1) / CHUNK;
        *elements += is_part(b, k) ? b->count[k] / b->part : b->count[k];
    }
    return first;
}

/* What torchvitals_measure says. */
enum { FINITE, NO_MEMORY, NOT_FINITE };

/* Fill in the sums of every tensor of the batch, and say whether all of their values are finite. */
EXPORT int torchvitals_measure(const batch *b) {
    int64_t elements = 0, *first = first_chunks(b, &elements);
    if (!first) return NO_MEMORY;
    slot *slots = malloc((size_t)(first[b->num] + 1) * sizeof *slots);
    if (!slots) {
        free(first);
        return NO_MEMORY;
    }
    int found = FINITE;
    job j;
    begin(&j, b, first, slots);
    if (b->parallel && b->threads > 1 && elements > ALONE)
        b->parallel(work, &j, (unsigned)b->threads, 0);
    else
        work(&j);

    for (int64_t k = 0; k < b->num; k++) {
        double *sums = b->sums + k * FIELDS;
        double *delta = b->old ? b->delta_sums + k * FIELDS : NULL;
        double *grad = b->grad_sums ? b->grad_sums + k * FIELDS : NULL;
        double dots[3] = {0, 0, 0}, outside = 0;
        if (is_again(b, k)) {
            memcpy(sums, sums - FIELDS, FIELDS * sizeof *sums);
            continue;
        }
        reset(sums);
        if (delta) reset(delta);
        if (grad) reset(grad);
        for (int64_t c = first[k]; c < first[k + 1]; c++) {
            merge(sums, slots[c].sums);
            if (delta) merge(delta, slots[c].delta);
            if (grad) merge(grad, slots[c].grad);
            for (int i = 0; i < 3; i++) dots[i] += slots[c].dots[i];
            outside += slots[c].outside;
        }
        if (sums[NANS] + sums[POSINF] + sums[NEGINF] > 0) found = NOT_FINITE;
        if (b->grad) memcpy(b->dots + 3 * k, dots, sizeof dots);
        if (b->ends) b->outside[k] = outside;
    }
    free(slots);
    free(first);
    return found;
}

/* Copies of whole tensors: `old` becomes `data`, chunk by chunk over all of them. */
static void copy_chunks(void *data) {
    job *j = data;
    const batch *b = j->b;
    hand h = arrive(j);
    int64_t chunk, k = 0;
    while ((chunk = next_chunk(j, &h)) >= 0) {
        k = tensor_of(j, chunk, k);
        const int64_t size = width_of(b->dtype[k]), begin = (chunk - j->first[k]) * CHUNK;
        const int64_t left = b->count[k] - begin, n = left < CHUNK ? left : CHUNK;
        memcpy((char *)(uintptr_t)b->old[k] + begin * size,
               (const char *)(uintptr_t)b->data[k] + begin * size, (size_t)(n * size));
    }
}

EXPORT int torchvitals_copy(const batch *b) {
    int64_t elements = 0, *first = first_chunks(b, &elements);
    if (!first) return 1;
    job j;
    begin(&j, b, first, NULL);
    if (b->parallel && b->threads > 1 && elements > ALONE)
        b->parallel(copy_chunks, &j, (unsigned)b->threads, 0);
    else
        copy_chunks(&j);
    free(first);
    return 0;
}
