/* The sums of a tensor, and the loops that gather them block by block.
 *
 * Nothing here knows Python or PyTorch: tensors are addresses, element counts and a dtype code.
 */
#ifndef TORCHVITALS_KERNEL_H
#define TORCHVITALS_KERNEL_H

#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 3 };

/* Order of the sums of one tensor: torchvitals.stats.sums.FIELDS says the same in Python. */
enum { COUNT, SUM, SUMSQ, MIN, MAX, ZEROS, NANS, POSINF, NEGINF, FIELDS };

/* The fixed bins of torchvitals.record.bins. */
enum {
    MIN_EXPONENT = -40,
    MAX_EXPONENT = 22,
    SIDE = 2 * (MAX_EXPONENT - MIN_EXPONENT) + 2,
    NUM_BINS = 2 * SIDE + 1,
    ZERO_BIN = SIDE
};

/* A block is what the fast loops take at a time: it fits the first-level cache with its delta, and
 * is short enough for float32 lane sums (256 terms a lane) to stay exact to a few 1e-6. */
enum { BLOCK = 2048 };

/* A histogram sample takes one group of 32 neighbours in every `stride`, counted from the tensor's
 * first element. An odd stride walks through all columns of a matrix. */
enum { GROUP = 32 };

/* Tensors up to this size get their full histogram: sampling would gain nothing. */
enum { SMALL = 4096 };

/* Tensors from this size on may be read in part. */
enum { PART_FROM = 1 << 16 };

/* Codes are the upper ten bits of a float32: sign, exponent, first mantissa bit. Counting them
 * needs no clamping; they are folded into bins once a chunk. Four tables keep two neighbours of
 * the same value from waiting for each other's increment. */
enum { CODES = 1024, TABLES = 4 };

/* By its bits: block.c is compiled to believe that every value is finite. */
static inline int is_finite(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* Where codes are counted by bits instead (sift.c): binary digits of the sums over a window of codes,
 * from `top` down, and the carries that wait for another one. */
enum { WINDOW = 32, DIGITS = 20, FIRST_CARRY = 4, MAX_LANES = 16 };

typedef struct {
    uint32_t all[MAX_LANES], negative[MAX_LANES];
} plane;

typedef struct {
    plane digit[DIGITS], carry[DIGITS];
    uint32_t taken; /* groups of words */
    uint32_t looked_up;
    int top;
} sieve;

/* Elements of a sample that wait to be counted together: up to half of them, and a block's more. */
enum { KEPT = 2 * BLOCK };

typedef struct {
    uint32_t code[TABLES][CODES];
    uint64_t zero, under_pos, under_neg, seen;
    int used;      /* codes from here on, of either sign, are untouched, */
    int least;     /* and so are those below this one */
    int tabled;    /* more than the first table is used */
    int scattered; /* too many codes lie below a window */
    int num_kept;
    sieve sieve;
    float kept[KEPT];
} tally;

/* Sums of sums are doubles: with few elements the rounding of the last additions is what a small
 * standard deviation beside a large mean would show. */
typedef struct {
    double sum, sumsq;
    float min, max;
    uint32_t zeros;
} block_sums;

/* The part of a block that a histogram looks at: runs of `length`, `step` apart, from `begin`. */
typedef struct {
    int64_t begin, step;
    int length;
} runs;

/* The loops, compiled once for each instruction set VARIANT (block.c and compare.c). */
typedef struct {
    /* What lies `ahead` elements on is asked for meanwhile. */
    void (*moments)(const float *x, int n, int ahead, block_sums *out);
    /* Sum and sum of squares alone. */
    void (*thin)(const float *x, int n, double *out);
    /* Also diff = fresh - old and its product with grad (which may be NULL); with roll, old becomes
     * fresh. */
    void (*update)(const float *fresh, float *old, const float *grad, int n, int roll, float *diff,
                   block_sums *now, block_sums *change, double *dot);
    void (*scale)(const float *x, int n, float factor, float *out);
    /* a . b, a . a, b . b */
    void (*dots)(const float *a, const float *b, int n, float *out);
    void (*widen_half)(const uint16_t *x, int n, float *out);
    void (*widen_bfloat)(const uint16_t *x, int n, float *out);
    /* Count the codes of all elements. */
    void (*tally_all)(const float *x, int n, tally *t);
    /* The same by bits, of the first of them; says of how many. */
    int (*sift)(const float *x, int n, tally *t);
    /* What was counted by bits goes to the tables. */
    void (*settle)(tally *t);
    /* sum = the tables of codes [at, at + n) added up; they are left empty. */
    void (*drain)(tally *t, int at, int n, uint32_t *sum);
    /* How many are at or beyond the ends; how many are zero. */
    uint32_t (*outside)(const float *x, int n, float low, float high);
    uint32_t (*zeros)(const float *x, int n);
    /* In rows of n units that lie `apart` elements apart: counts[u] += |x[u]| > floor, and where
     * there are totals, totals[u] += |x[u]|. */
    void (*active)(const float *x, int64_t rows, int64_t apart, int n, float floor,
                   uint32_t *counts, float *totals);
} loops;

#ifdef VARIANT
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define OF(name) JOIN(name, VARIANT)

/* As many numbers as a register of this instruction set holds. Some loops are written out in them:
 * compilers unroll the plain ones before they see what these are. */
#ifdef __AVX512F__
enum { WIDE = 16 };
#elif defined(__AVX__)
enum { WIDE = 8 };
#else
enum { WIDE = 4 };
#endif
typedef float floats __attribute__((vector_size(WIDE * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(WIDE * sizeof(int32_t))));

int OF(sift)(const float *x, int n, tally *t);
void OF(settle)(tally *t);
uint32_t OF(outside)(const float *x, int n, float low, float high);
uint32_t OF(zeros)(const float *x, int n);
void OF(active)(const float *x, int64_t rows, int64_t apart, int n, float floor, uint32_t *counts,
                float *totals);
#endif

extern const loops loops_baseline;
#ifdef WITH_AVX
extern const loops loops_avx2, loops_avx512;
#endif

/* The loops of the best instruction set here, or of the one that was asked for (sets.c). */
const loops *chosen_loops(void);

/* Bytes of an element; `n` elements as float32, in `room` if they are of another dtype (elements.c). */
int width_of(int dtype);
const float *as_float(const loops *loop, uint64_t base, int dtype, int64_t at, int n, float *room);

/* Whether all squares of a block stayed in float32's range. */
static inline int is_ordinary(const block_sums *s) { return is_finite((float)s->sumsq); }

/* Largest magnitude of a block. */
static inline float biggest(const block_sums *s) { return s->max > -s->min ? s->max : -s->min; }

/* With `shared`, other threads add to the same bins. */
static inline void add_to(uint32_t *bin, uint32_t count, int shared) {
    if (!shared)
        *bin += count;
    else if (count)
        __atomic_fetch_add(bin, count, __ATOMIC_RELAXED);
}

static inline void forget_counts(tally *t) {
    memset(t->code, 0, sizeof t->code);
    t->zero = t->under_pos = t->under_neg = t->seen = 0;
    t->used = t->tabled = t->scattered = t->num_kept = 0;
    t->least = CODES / 2;
    t->sieve.taken = 0;
}

/* Histograms (tally.c). Those of a block that starts `at` in a tensor of `total` elements look at
 * these of its n; */
runs runs_of(int64_t at, int n, int64_t total, int stride);
/* they are counted, or kept until there are enough of them, */
void tally_block(const loops *loop, const block_sums *s, const float *x, int n, runs r, int constant,
                 tally *t);
/* and at a tensor's end become bins, and the tally is empty again. */
void fold(const loops *loop, tally *t, uint32_t *bins, int shared);

/* The careful path, for blocks with non-finite or extreme values and for float64 (exact.c). */
void exact_f32(const float *x, int64_t n, double *sums);
void exact_f64(const double *x, int64_t n, double *sums);
void exact_dots(const float *a, const float *b, int64_t n, double *dots);
void exact_bins_f64(const double *x, int64_t n, uint32_t *bins);

#endif
