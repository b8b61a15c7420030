/* One call for a whole list of tensors: chunks over all of them are handed to the threads, each
 * chunk leaves its sums in a slot of its own, and the slots are added up in order at the end, so
 * the result is the same whichever thread did what.
 *
 * Threads are borrowed from the OpenMP runtime torch has loaded (docs/decisions/0002): the caller
 * passes the address of its GOMP_parallel. Without one, the call runs on the calling thread.
 */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ABI_VERSION 14

/* Bytes of an element. */
static const int WIDTH[] = {[F32] = 4, [F64] = 8, [F16] = 2, [BF16] = 2};

/* Elements of a chunk: long enough that handing it out costs nothing, short enough to balance. */
enum { CHUNK = 64 * BLOCK };

/* Below this many elements in all, waking other threads costs more than it saves. */
enum { ALONE = 32768 };

/* The cosine of change and gradient reads one block in five of a tensor larger than this: it is an
 * angle over thousands of elements, and a third stream through memory would cost more than it
 * tells. */
enum { ALL_DOTS = 16 * BLOCK, DOT_STRIDE = 5 };

typedef void (*parallel_fn)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

/* How often each unit of a layer is active, |x| > floor, and the sum of |x|, in a sample of the
 * rows: the tensor is outer x units x inner, and of its outer x inner rows one in `step` is looked
 * at. */
typedef struct {
    int64_t units, inner, step;
    uint64_t counts; /* address of `units` uint32, added to */
    uint64_t totals; /* 0, or address of `units` float, added to */
    double floor;
} activity;

typedef struct {
    int64_t num;          /* tensors */
    const uint64_t *data; /* addresses of their values */
    const int64_t *count;
    const uint8_t *dtype;
    const uint64_t *old;    /* NULL, or earlier values: the delta is data - old */
    const uint64_t *grad;   /* NULL, or gradients (0: none) for the dot product with the delta */
    const float *ends;      /* NULL, or (low, high) of each tensor: how many lie outside */
    double *sums;           /* num x FIELDS */
    double *delta_sums;     /* num x FIELDS, with old */
    double *dots;           /* num x 3, with grad: delta . grad, delta^2, grad^2 */
    double *outside;        /* num, with ends */
    double *grad_sums;      /* NULL, or num x FIELDS: the gradients' own sums in the same pass */
    const activity *active; /* NULL, or what to count a unit in each tensor (units 0: nothing) */
    uint32_t *bins;         /* NULL, or num x NUM_BINS, added to */
    uint32_t *delta_bins;   /* NULL, or num x NUM_BINS, added to */
    uint32_t *grad_bins;    /* NULL, or num x NUM_BINS, added to */
    parallel_fn parallel;   /* NULL: run on the calling thread */
    int32_t threads;
    int32_t stride;         /* histogram: one group in `stride`; 1 takes all */
    int32_t roll;           /* old becomes data in the same pass */
    int32_t thin;           /* no minima, maxima and zeros, and nothing but sums */
    int32_t part;           /* 0, or: of large tensors only one group in so many is read, */
    int32_t phase;          /* from this one on; no histograms are counted then */
} batch;

typedef struct {
    double sums[FIELDS], delta[FIELDS], grad[FIELDS], dots[3], outside;
} slot;

/* Chunks are shared out evenly, and in the same way at every step: a thread finds in its cache what
 * it wrote a step ago. Who is done with its own share helps with the next one. */
enum { SHARES = 64, LINE_BYTES = 64 };

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

/* What a thread carries along: tallies of the tensor it is in, and room for widened values. */
typedef struct {
    int64_t tensor;
    tally fresh, delta, grad;
    float wide[BLOCK], wide_old[BLOCK], wide_grad[BLOCK], diff[BLOCK], room[2 * BLOCK];
    double diff64[BLOCK];
} desk;

/* The loops of each instruction set, the best one last. */
static const struct {
    const char *name;
    const loops *loops;
} sets[] = {
    {"baseline", &loops_baseline},
#ifdef WITH_AVX
    {"avx2", &loops_avx2},
    {"avx512", &loops_avx512},
#endif
};

static int chosen_set;
static const loops *chosen = &loops_baseline;

/* How many of the sets this machine has: each one has the ones before. */
static int sets_here(void) {
#ifdef WITH_AVX
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl")) return 2;
    return 3;
#else
    return 1;
#endif
}

static void choose(int set) {
    chosen_set = set;
    chosen = sets[set].loops;
}

#if defined(__GNUC__)
__attribute__((constructor))
#endif
static void choose_best(void) { choose(sets_here() - 1); }

EXPORT int torchvitals_abi(void) { return ABI_VERSION; }
EXPORT const char *torchvitals_simd(void) { return sets[chosen_set].name; }

/* For tests and `vitals doctor`: use the named loops; 0 if this machine or build lacks them. */
EXPORT int torchvitals_use(const char *name) {
    for (int set = 0; set < sets_here(); set++)
        if (!strcmp(name, sets[set].name)) {
            choose(set);
            return 1;
        }
    return 0;
}

static void reset(double *sums) {
    memset(sums, 0, FIELDS * sizeof *sums);
    sums[MIN] = INFINITY;
    sums[MAX] = -INFINITY;
}

static void merge(double *into, const double *from) {
    for (int i = 0; i < FIELDS; i++)
        if (i != MIN && i != MAX) into[i] += from[i];
    if (from[MIN] < into[MIN]) into[MIN] = from[MIN];
    if (from[MAX] > into[MAX]) into[MAX] = from[MAX];
}

/* Below this magnitude squares leave float32's range; such a block is lifted by 2^80 first. Above
 * HUGE_VALUE they overflow. */
static const float TINY = 1e-12f, HUGE_VALUE = 1e15f, LIFT = 0x1p80f;

static void add(double *sums, int n, const block_sums *s, double unit) {
    sums[COUNT] += n;
    sums[SUM] += s->sum * unit;
    sums[SUMSQ] += s->sumsq * unit * unit;
    if (s->min * unit < sums[MIN]) sums[MIN] = s->min * unit;
    if (s->max * unit > sums[MAX]) sums[MAX] = s->max * unit;
    sums[ZEROS] += s->zeros;
}

/* Add a block's sums, if need be after doing the block again. Returns whether it is constant.
 * Any NaN or Inf makes the sum of squares non-finite; nothing else is asked of the fast loops. */
static int take(const loops *loop, const block_sums *s, const float *x, int n, double *sums,
                float *room) {
    const float top = biggest(s);
    if (!is_ordinary(s) || top >= HUGE_VALUE) {
        exact_f32(x, n, sums);
        return 0;
    }
    if (top == 0 || top > TINY) {
        add(sums, n, s, 1.0);
    } else {
        block_sums lifted;
        loop->scale(x, n, LIFT, room);
        loop->moments(room, n, 0, &lifted);
        add(sums, n, &lifted, 1.0 / (double)LIFT);
    }
    return s->min == s->max;
}

/* Add diff . grad, diff . diff and grad . grad of a block. */
static void take_dots(const loops *loop, const block_sums *change, const block_sums *slope,
                      double dot, const float *diff, const float *grad, int n, double *dots,
                      float *room) {
    const float top = biggest(change);
    const double grad_sumsq = slope->sumsq;
    if (!is_ordinary(change) || !is_ordinary(slope) || top >= HUGE_VALUE) {
        exact_dots(diff, grad, n, dots);
        return;
    }
    if (top > TINY && grad_sumsq > TINY * TINY) {
        dots[0] += dot;
        dots[1] += change->sumsq;
        dots[2] += grad_sumsq;
        return;
    }
    float lifted[3];
    const double a = top > TINY ? 1.0 : LIFT, b = grad_sumsq > TINY * TINY ? 1.0 : LIFT;
    loop->scale(diff, n, (float)a, room);
    loop->scale(grad, n, (float)b, room + BLOCK);
    loop->dots(room, room + BLOCK, n, lifted);
    dots[0] += lifted[0] / a / b;
    dots[1] += lifted[1] / a / a;
    dots[2] += lifted[2] / b / b;
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

/* A block as float32: the tensor itself, or its values widened into `room`. */
static const float *as_float(const loops *loop, uint64_t base, int dtype, int64_t at, int n,
                             float *room) {
    if (dtype == F32) return (const float *)(uintptr_t)base + at;
    const uint16_t *x = (const uint16_t *)(uintptr_t)base + at;
    if (dtype == BF16) {
        loop->widen_bfloat(x, n, room);
        return room;
    }
    loop->widen_half(x, n, room);
    for (int i = 0; i < n; i++) {
        /* 65536 and above are Inf and NaN in disguise. */
        if (room[i] >= 65536.0f || room[i] <= -65536.0f) {
            uint32_t bits = ((uint32_t)(x[i] & 0x8000) << 16) | 0x7f800000u |
                            ((uint32_t)(x[i] & 0x3ff) << 13);
            memcpy(room + i, &bits, 4);
        }
    }
    return room;
}

static int looks_at_dot(const batch *b, int64_t k, int64_t at) {
    return b->grad_sums || b->count[k] <= ALL_DOTS || at / BLOCK % DOT_STRIDE == 0;
}

static void bins_f64(const batch *b, int64_t k, const double *x, int64_t at, int n,
                     uint32_t *bins) {
    uint32_t local[NUM_BINS] = {0};
    const runs r = runs_of(at, n, b->count[k], b->stride);
    for (int64_t i = r.begin; i < n; i += r.step)
        exact_bins_f64(x + i, n - i < r.length ? n - i : r.length, local);
    for (int i = 0; i < NUM_BINS; i++) add_to(bins + k * NUM_BINS + i, local[i], 1);
}

static int64_t outside_f64(const double *x, int n, double low, double high) {
    int64_t found = 0;
    for (int i = 0; i < n; i++) found += x[i] <= low || x[i] >= high;
    return found;
}

static void do_f64(const batch *b, int64_t k, int64_t at, int n, desk *d, slot *s) {
    const double *x = (const double *)(uintptr_t)b->data[k] + at;
    exact_f64(x, n, s->sums);
    if (b->bins) bins_f64(b, k, x, at, n, b->bins);
    if (b->ends) s->outside += outside_f64(x, n, b->ends[2 * k], b->ends[2 * k + 1]);
    if (!b->old) return;
    double *old = (double *)(uintptr_t)b->old[k] + at;
    for (int i = 0; i < n; i++) d->diff64[i] = x[i] - old[i];
    exact_f64(d->diff64, n, s->delta);
    if (b->delta_bins) bins_f64(b, k, d->diff64, at, n, b->delta_bins);
    if (b->grad && b->grad[k] && looks_at_dot(b, k, at)) {
        const double *g = (const double *)(uintptr_t)b->grad[k] + at;
        if (b->grad_sums) exact_f64(g, n, s->grad);
        if (b->grad_bins) bins_f64(b, k, g, at, n, b->grad_bins);
        for (int i = 0; i < n; i++) {
            s->dots[0] += d->diff64[i] * g[i];
            s->dots[1] += d->diff64[i] * d->diff64[i];
            s->dots[2] += g[i] * g[i];
        }
    }
    if (b->roll) memcpy(old, x, (size_t)n * sizeof *x);
}

/* Counts, sum and sum of squares. Squares that leave float32's range are taken of lifted values. */
static void do_thin(const loops *loop, const float *x, int n, desk *d, double *sums) {
    double found[2];
    loop->thin(x, n, found);
    if (!is_finite((float)found[1])) {
        exact_f32(x, n, sums);
        return;
    }
    double unit = 1.0;
    if (found[1] < n * TINY * TINY) {
        loop->scale(x, n, LIFT, d->room);
        loop->thin(d->room, n, found);
        unit = 1.0 / (double)LIFT;
    }
    sums[COUNT] += n;
    sums[SUM] += found[0] * unit;
    sums[SUMSQ] += found[1] * unit * unit;
}

static void do_block(const job *j, int64_t k, int64_t at, int n, desk *d, slot *s) {
    const batch *b = j->b;
    const loops *loop = j->loop;
    const int dtype = b->dtype[k];
    if (dtype == F64) {
        do_f64(b, k, at, n, d, s);
        return;
    }
    const float *x = as_float(loop, b->data[k], dtype, at, n, d->wide);
    if (b->thin) {
        do_thin(loop, x, n, d, s->sums);
        return;
    }
    const runs r = runs_of(at, n, b->count[k], b->stride);
    block_sums now, change;
    /* Counting every element asks for the next block by itself. */
    const int ahead = b->bins && r.length == n ? 0 : BLOCK;
    if (!b->old) {
        loop->moments(x, n, ahead, &now);
    } else {
        float *old = (float *)(uintptr_t)b->old[k] + at;
        const float *grad = NULL;
        if (dtype != F32) old = (float *)as_float(loop, b->old[k], dtype, at, n, d->wide_old);
        if (b->grad && b->grad[k] && looks_at_dot(b, k, at))
            grad = as_float(loop, b->grad[k], dtype, at, n, d->wide_grad);
        block_sums slope;
        if (grad) loop->moments(grad, n, ahead, &slope);
        if (grad && b->grad_sums) {
            const int constant = take(loop, &slope, grad, n, s->grad, d->room);
            if (b->grad_bins) tally_block(loop, &slope, grad, n, r, constant, &d->grad);
        }
        double dot;
        loop->update(x, old, grad, n, b->roll, d->diff, &now, &change, &dot);
        if (grad) take_dots(loop, &change, &slope, dot, d->diff, grad, n, s->dots, d->room);
        if (b->roll && dtype != F32)
            memcpy((uint16_t *)(uintptr_t)b->old[k] + at,
                   (const uint16_t *)(uintptr_t)b->data[k] + at, (size_t)n * sizeof(uint16_t));
    }
    int constant = take(loop, &now, x, n, s->sums, d->room);
    if (b->bins) tally_block(loop, &now, x, n, r, constant, &d->fresh);
    if (b->ends && b->ends[2 * k] > -INFINITY)
        s->outside += loop->outside(x, n, b->ends[2 * k], b->ends[2 * k + 1]);
    if (!b->old) return;
    constant = take(loop, &change, d->diff, n, s->delta, d->room);
    if (b->delta_bins) tally_block(loop, &change, d->diff, n, r, constant, &d->delta);
}

/* The elements of a part as if they were a tensor of their own, `n` of them in `d->wide`. */
static void take_part(const job *j, int64_t k, int n, desk *d, slot *s) {
    const batch *b = j->b;
    block_sums now;
    j->loop->moments(d->wide, n, 0, &now);
    take(j->loop, &now, d->wide, n, s->sums, d->room);
    if (b->ends && b->ends[2 * k] > -INFINITY)
        s->outside += j->loop->outside(d->wide, n, b->ends[2 * k], b->ends[2 * k + 1]);
}

static int is_part(const batch *b, int64_t k) {
    return b->part > 1 && b->count[k] >= PART_FROM;
}

/* The first group of a chunk that belongs to the part. */
static int64_t first_of_part(const batch *b, int64_t begin) {
    const int64_t off = b->phase - begin / GROUP % b->part;
    return begin + (off < 0 ? off + b->part : off) * GROUP;
}

static void do_part_f64(const batch *b, int64_t k, int64_t begin, int64_t end, slot *s) {
    const double *x = (const double *)(uintptr_t)b->data[k];
    for (int64_t at = first_of_part(b, begin); at < end; at += (int64_t)b->part * GROUP) {
        const int n = end - at < GROUP ? (int)(end - at) : GROUP;
        exact_f64(x + at, n, s->sums);
        if (b->ends) s->outside += outside_f64(x + at, n, b->ends[2 * k], b->ends[2 * k + 1]);
    }
}

/* One group in `part` of a chunk. What comes next is asked for meanwhile: the processor does not
 * guess that far. */
static void do_part(const job *j, int64_t k, int64_t begin, int64_t end, desk *d, slot *s) {
    enum { GROUPS_AHEAD = 16 };
    const batch *b = j->b;
    const int width = WIDTH[b->dtype[k]];
    const int64_t step = (int64_t)b->part * GROUP;
    int n = 0;
    for (int64_t at = first_of_part(b, begin); at < end; at += step) {
        const int length = end - at < GROUP ? (int)(end - at) : GROUP;
        const char *next = (const char *)(uintptr_t)b->data[k] + (at + GROUPS_AHEAD * step) * width;
        __builtin_prefetch(next);
        if (GROUP * width > LINE_BYTES) __builtin_prefetch(next + LINE_BYTES);
        float *room = d->wide + n;
        const float *x = as_float(j->loop, b->data[k], b->dtype[k], at, length, room);
        if (x != room) memcpy(room, x, (size_t)length * sizeof *x);
        n += length;
        if (n > BLOCK - GROUP) {
            take_part(j, k, n, d, s);
            n = 0;
        }
    }
    if (n) take_part(j, k, n, d, s);
}

static void count_active(const batch *b, int64_t k, const loops *loop, float *room) {
    const activity *a = b->active + k;
    const int dtype = b->dtype[k];
    uint32_t *counts = (uint32_t *)(uintptr_t)a->counts;
    float *totals = (float *)(uintptr_t)a->totals;
    const int64_t rows = b->count[k] / a->units;
    if (dtype == F32 && a->inner == 1 && a->units <= INT32_MAX) {
        const float *x = (const float *)(uintptr_t)b->data[k];
        loop->active(x, (rows + a->step - 1) / a->step, a->step * a->units, (int)a->units,
                     (float)a->floor, counts, totals);
        return;
    }
    for (int64_t row = 0; row < rows; row += a->step) {
        const int64_t at = row / a->inner * a->units * a->inner + row % a->inner;
        for (int64_t u = 0; u < a->units && a->inner == 1 && dtype != F64; u += BLOCK) {
            int n = a->units - u < BLOCK ? (int)(a->units - u) : BLOCK;
            const float *x = as_float(loop, b->data[k], dtype, at + u, n, room);
            loop->active(x, 1, 0, n, (float)a->floor, counts + u, totals ? totals + u : NULL);
        }
        for (int64_t u = 0; u < a->units && (a->inner != 1 || dtype == F64); u++) {
            const int64_t i = at + u * a->inner;
            double v = dtype == F64 ? ((const double *)(uintptr_t)b->data[k])[i]
                                    : *as_float(loop, b->data[k], dtype, i, 1, room);
            counts[u] += v > a->floor || v < -a->floor;
            if (totals) totals[u] += (float)fabs(v);
        }
    }
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

static void do_chunk(const job *j, int64_t k, int64_t chunk, desk *d) {
    slot *s = j->slots + chunk;
    memset(s, 0, sizeof *s);
    reset(s->sums);
    reset(s->delta);
    reset(s->grad);
    int64_t begin = (chunk - j->first[k]) * CHUNK;
    int64_t end = begin + CHUNK < j->b->count[k] ? begin + CHUNK : j->b->count[k];
    if (is_part(j->b, k)) {
        if (j->b->dtype[k] == F64)
            do_part_f64(j->b, k, begin, end, s);
        else
            do_part(j, k, begin, end, d, s);
        return;
    }
    for (int64_t at = begin; at < end; at += BLOCK)
        do_block(j, k, at, end - at < BLOCK ? (int)(end - at) : BLOCK, d, s);
}

static job new_job(const batch *b, const int64_t *first, slot *slots) {
    job j;
    j.b = b, j.loop = chosen, j.first = first, j.slots = slots;
    j.num_shares = b->threads < 1 ? 1 : b->threads < SHARES ? b->threads : SHARES;
    j.arrived = 0;
    for (int i = 0; i < j.num_shares; i++) j.shares[i].taken = 0;
    return j;
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
        do_chunk(j, k, chunk, &d);
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
    job j = new_job(b, first, slots);
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
        const int64_t size = WIDTH[b->dtype[k]], begin = (chunk - j->first[k]) * CHUNK;
        const int64_t left = b->count[k] - begin, n = left < CHUNK ? left : CHUNK;
        memcpy((char *)(uintptr_t)b->old[k] + begin * size,
               (const char *)(uintptr_t)b->data[k] + begin * size, (size_t)(n * size));
    }
}

EXPORT int torchvitals_copy(const batch *b) {
    int64_t elements = 0, *first = first_chunks(b, &elements);
    if (!first) return 1;
    job j = new_job(b, first, NULL);
    if (b->parallel && b->threads > 1 && elements > ALONE)
        b->parallel(copy_chunks, &j, (unsigned)b->threads, 0);
    else
        copy_chunks(&j);
    free(first);
    return 0;
}

/* Lines of LINE neighbours, `stride` lines apart from line `start`, as float32, one after another.
 * The sample of a weight's values: whole cache lines, spread over the tensor. */
enum { LINE = 16 };

typedef struct {
    int64_t num;
    const uint64_t *data;
    const int64_t *count;
    const uint8_t *dtype;
    const int64_t *start; /* lines */
    const int64_t *stride;
    const int64_t *lines; /* 0: the whole tensor */
    const uint64_t *out;  /* where each tensor's sample goes: float, or double for float64 */
} gather;

static void copy_run(const loops *loop, const gather *g, int64_t k, int64_t at, int64_t n,
                     int64_t to) {
    if (g->dtype[k] == F64) {
        memcpy((double *)(uintptr_t)g->out[k] + to, (const double *)(uintptr_t)g->data[k] + at,
               (size_t)n * sizeof(double));
        return;
    }
    float room[BLOCK], *out = (float *)(uintptr_t)g->out[k] + to;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int part = n - i < BLOCK ? (int)(n - i) : BLOCK;
        const float *x = as_float(loop, g->data[k], g->dtype[k], at + i, part, room);
        memcpy(out + i, x, (size_t)part * sizeof(float));
    }
}

EXPORT void torchvitals_gather(const gather *g) {
    for (int64_t k = 0; k < g->num; k++) {
        if (g->lines[k] == 0) {
            copy_run(chosen, g, k, 0, g->count[k], 0);
            continue;
        }
        const int64_t all = g->count[k] / LINE;
        int64_t line = g->start[k] % all;
        for (int64_t i = 0; i < g->lines[k]; i++) {
            copy_run(chosen, g, k, line * LINE, LINE, i * LINE);
            line += g->stride[k];
            if (line >= all) line -= all;
        }
    }
}

/* Whether the same lines of two lists hold the same bits: `out` is where the second list is. */
EXPORT int torchvitals_same(const gather *g) {
    for (int64_t k = 0; k < g->num; k++) {
        const int size = WIDTH[g->dtype[k]];
        const char *a = (const char *)(uintptr_t)g->data[k];
        const char *b = (const char *)(uintptr_t)g->out[k];
        if (g->lines[k] == 0) {
            if (memcmp(a, b, (size_t)(g->count[k] * size))) return 0;
            continue;
        }
        const int64_t all = g->count[k] / LINE;
        int64_t line = g->start[k] % all;
        for (int64_t i = 0; i < g->lines[k]; i++) {
            const int64_t at = line * LINE * size;
            if (memcmp(a + at, b + at, (size_t)(LINE * size))) return 0;
            line += g->stride[k];
            if (line >= all) line -= all;
        }
    }
    return 1;
}
