/* The loops that add up: plain ones, which the compiler vectorises, and some written in vectors.
 *
 * This file is compiled once for each instruction set, with associative, finite-only arithmetic.
 * That is sound because a block whose sum of squares is not an ordinary number is thrown away and
 * done again in exact.c, and the test for that (kernel.c) looks at bits, not at values.
 */
#include "kernel.h"

#include <string.h>

/* Elements that are asked for before they are needed: memory is looked through page by page, and
 * the processor's own guesses end at a page's end. */
enum { AHEAD = 1024 };

/* Elements of a cache line: as many are taken at a time, and a line asked for once. */
enum { PACE = 16 };

/* Eight neighbours. */
static inline __attribute__((always_inline)) void tally_eight(const float *x, tally *restrict t) {
    const char *p = (const char *)x;
    uint64_t a, b, c, d;
    memcpy(&a, p, 8);
    memcpy(&b, p + 8, 8);
    memcpy(&c, p + 16, 8);
    memcpy(&d, p + 24, 8);
    t->code[0][(uint32_t)a >> 22]++;
    t->code[1][a >> 54]++;
    t->code[2][(uint32_t)b >> 22]++;
    t->code[3][b >> 54]++;
    t->code[0][(uint32_t)c >> 22]++;
    t->code[1][c >> 54]++;
    t->code[2][(uint32_t)d >> 22]++;
    t->code[3][d >> 54]++;
}

static inline floats read(const float *x) {
    floats v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline floats lower(floats a, floats b) {
    for (int k = 0; k < WIDE; k++) b[k] = a[k] < b[k] ? a[k] : b[k];
    return b;
}

static inline floats higher(floats a, floats b) {
    for (int k = 0; k < WIDE; k++) b[k] = a[k] > b[k] ? a[k] : b[k];
    return b;
}

/* The sums of `moments`, a vector of each. */
typedef struct {
    floats sum, sumsq, min, max;
    ints zeros;
} side_by_side;

static side_by_side starting(float v) {
    const floats all = v - (floats){0};
    return (side_by_side){.min = all, .max = all};
}

static inline __attribute__((always_inline)) void take_in(side_by_side *s, floats v) {
    s->sum += v;
    s->sumsq += v * v;
    s->min = lower(v, s->min);
    s->max = higher(v, s->max);
    s->zeros -= v == 0.0f; /* true is -1 */
}

static double added_up(floats v) {
    double found = v[0];
    for (int k = 1; k < WIDE; k++) found += v[k];
    return found;
}

static block_sums together(const side_by_side *s) {
    block_sums out = {added_up(s->sum), added_up(s->sumsq), s->min[0], s->max[0], 0};
    for (int k = 0; k < WIDE; k++) {
        out.min = s->min[k] < out.min ? s->min[k] : out.min;
        out.max = s->max[k] > out.max ? s->max[k] : out.max;
        out.zeros += (uint32_t)s->zeros[k];
    }
    return out;
}

static void take_one(block_sums *s, float v) {
    s->sum += v;
    s->sumsq += (double)v * v;
    s->min = v < s->min ? v : s->min;
    s->max = v > s->max ? v : s->max;
    s->zeros += v == 0.0f;
}

/* Memory is read in two streams, the halves of a block: faster than one after the other. Each has its
 * own sums, and what lies `ahead` is asked for meanwhile. */
static __attribute__((noinline)) void walk_halves(const float *restrict x, const float *restrict y,
                                                  int n, int ahead, side_by_side *restrict sums) {
    side_by_side a = sums[0], b = sums[1];
    for (int i = 0; i < n; i += PACE) {
        __builtin_prefetch(x + i + ahead);
        __builtin_prefetch(y + i + ahead);
        for (int k = i; k < i + PACE; k += WIDE) {
            take_in(&a, read(x + k));
            take_in(&b, read(y + k));
        }
    }
    sums[0] = a;
    sums[1] = b;
}

/* Half of a block; what is left over at its end is less than two groups. */
static int half_of(int n) { return n / (2 * GROUP) * GROUP; }

static void moments(const float *x, int n, int ahead, block_sums *out) {
    side_by_side sums[] = {starting(x[0]), starting(x[0])};
    const int half = half_of(n);
    walk_halves(x, x + half, half, ahead, sums);
    sums[0].min = lower(sums[0].min, sums[1].min);
    sums[0].max = higher(sums[0].max, sums[1].max);
    sums[0].zeros += sums[1].zeros;
    *out = together(sums);
    out->sum += added_up(sums[1].sum);
    out->sumsq += added_up(sums[1].sumsq);
    for (int i = 2 * half; i < n; i++) take_one(out, x[i]);
}

/* The sums of `thin`, a vector of each for both halves. */
typedef struct {
    floats sum[2], sumsq[2];
} thin_sums;

/* A function of its own: the sums stay in registers. */
static __attribute__((noinline)) void walk_thin(const float *restrict x, const float *restrict y,
                                                int n, thin_sums *restrict sums) {
    floats a = sums->sum[0], b = sums->sum[1], aa = sums->sumsq[0], bb = sums->sumsq[1];
    for (int i = 0; i < n; i += PACE) {
        __builtin_prefetch(x + i + BLOCK);
        __builtin_prefetch(y + i + BLOCK);
        for (int k = i; k < i + PACE; k += WIDE) {
            const floats v = read(x + k), w = read(y + k);
            a += v;
            b += w;
            aa += v * v;
            bb += w * w;
        }
    }
    *sums = (thin_sums){{a, b}, {aa, bb}};
}

static void thin(const float *restrict x, int n, double *restrict out) {
    thin_sums sums = {{{0}}, {{0}}};
    const int half = half_of(n);
    walk_thin(x, x + half, half, &sums);
    out[0] = added_up(sums.sum[0]) + added_up(sums.sum[1]);
    out[1] = added_up(sums.sumsq[0]) + added_up(sums.sumsq[1]);
    for (int i = 2 * half; i < n; i++) {
        out[0] += x[i];
        out[1] += (double)x[i] * x[i];
    }
}

/* A half's exponent and mantissa, moved to a float's place, are the value times 2^-112, also for
 * subnormals. Inf and NaN come out at 65536 and above, which no half reaches: kernel.c looks. */
static void widen_half(const uint16_t *restrict x, int n, float *restrict out) {
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(x[i] & 0x7fff) << 13;
        uint32_t sign = (uint32_t)(x[i] & 0x8000) << 16;
        float value;
        memcpy(&value, &magnitude, 4);
        value *= 0x1p112f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        bits |= sign;
        memcpy(out + i, &bits, 4);
    }
}

static void widen_bfloat(const uint16_t *restrict x, int n, float *restrict out) {
    for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(out + i, &bits, 4);
    }
}

/* A stretch of values, their change, and its product with the gradient, in one walk over memory. */
typedef struct {
    side_by_side fresh, diff;
    floats dot;
} update_sums;

static inline __attribute__((always_inline)) void walk(const float *restrict fresh,
                                                       float *restrict old,
                                                       const float *restrict grad, int n,
                                                       float *restrict diff, update_sums *sums,
                                                       const int roll, const int with_grad) {
    update_sums s = *sums;
    for (int i = 0; i < n; i += PACE) {
        __builtin_prefetch(fresh + i + AHEAD);
        __builtin_prefetch(old + i + AHEAD);
        for (int k = i; k < i + PACE; k += WIDE) {
            const floats v = read(fresh + k), d = v - read(old + k);
            if (roll) memcpy(old + k, &v, sizeof v);
            memcpy(diff + k, &d, sizeof d);
            take_in(&s.fresh, v);
            take_in(&s.diff, d);
            if (with_grad) s.dot += d * read(grad + k);
        }
    }
    *sums = s;
}

/* Functions of their own: the sums stay in registers. */
#define WALK(name, roll, with_grad)                                                             \
    static __attribute__((noinline)) void name(const float *fresh, float *old, const float *grad, \
                                               int n, float *diff, update_sums *sums) {         \
        walk(fresh, old, grad, n, diff, sums, roll, with_grad);                                 \
    }
WALK(walk_plain, 0, 0)
WALK(walk_grad, 0, 1)
WALK(walk_roll, 1, 0)
WALK(walk_roll_grad, 1, 1)

static void update(const float *fresh, float *old, const float *grad, int n, int roll, float *diff,
                   block_sums *now, block_sums *change, double *dot) {
    void (*const on)(const float *, float *, const float *, int, float *, update_sums *) =
        roll ? (grad ? walk_roll_grad : walk_roll) : (grad ? walk_grad : walk_plain);
    update_sums sums = {starting(fresh[0]), starting(fresh[0] - old[0]), {0}};
    const int whole = n - n % PACE;
    on(fresh, old, grad, whole, diff, &sums);
    *now = together(&sums.fresh);
    *change = together(&sums.diff);
    *dot = added_up(sums.dot);
    for (int i = whole; i < n; i++) {
        const float v = fresh[i], d = v - old[i];
        if (roll) old[i] = v;
        diff[i] = d;
        take_one(now, v);
        take_one(change, d);
        if (grad) *dot += (double)d * grad[i];
    }
}

static void scale(const float *restrict x, int n, float factor, float *restrict out) {
    for (int i = 0; i < n; i++) out[i] = x[i] * factor;
}

static void dots(const float *restrict a, const float *restrict b, int n, float *restrict out) {
    float ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    out[0] = ab;
    out[1] = aa;
    out[2] = bb;
}

/* Every element; the next block is fetched meanwhile. */
static void tally_all(const float *x, int n, tally *t) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __builtin_prefetch(x + i + BLOCK);
        tally_eight(x + i, t);
    }
    for (; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        t->code[i & 3][bits >> 22]++;
    }
}

static void drain(tally *restrict t, int at, int n, uint32_t *restrict sum) {
    uint32_t *restrict first = t->code[0] + at;
    for (int c = 0; c < n; c++) sum[c] = first[c];
    memset(first, 0, (size_t)n * sizeof *first);
    if (!t->tabled) return;
    for (int k = 1; k < TABLES; k++) {
        uint32_t *restrict more = t->code[k] + at;
        for (int c = 0; c < n; c++) sum[c] += more[c];
        memset(more, 0, (size_t)n * sizeof *more);
    }
}

const loops OF(loops) = {
    moments,   thin,     update,     scale, dots,        widen_half, widen_bfloat,
    tally_all, OF(sift), OF(settle), drain, OF(outside), OF(zeros),  OF(active),
};
