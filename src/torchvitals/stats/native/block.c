/* The loops that add up, written plainly for the compiler to vectorise.
 *
 * This file is compiled once for each instruction set, with associative, finite-only arithmetic.
 * That is sound because a block whose sum of squares is not an ordinary number is thrown away and
 * done again in exact.c, and the test for that (kernel.c) looks at bits, not at values.
 */
#include "kernel.h"

#include <string.h>

/* Sums side by side: an addition need not wait for the one before. Two vectors of each of five sums,
 * or four of each of two, fill the registers that AVX2 has. */
enum { LANES = 16, THIN_LANES = 32 };

/* Elements that are asked for before they are needed: memory is looked through page by page, and
 * the processor's own guesses end at a page's end. */
enum { AHEAD = 1024 };

static void moments(const float *restrict x, int n, block_sums *restrict out) {
    float sum[LANES] = {0}, sumsq[LANES] = {0}, min[LANES], max[LANES];
    int32_t zeros[LANES] = {0};
    int i = 0;
    for (int k = 0; k < LANES; k++) min[k] = max[k] = x[0];
    for (; i + LANES <= n; i += LANES) {
        __builtin_prefetch(x + i + AHEAD);
        for (int k = 0; k < LANES; k++) {
            float v = x[i + k];
            sum[k] += v;
            sumsq[k] += v * v;
            min[k] = v < min[k] ? v : min[k];
            max[k] = v > max[k] ? v : max[k];
            zeros[k] += v == 0.0f;
        }
    }
    for (; i < n; i++) {
        sum[0] += x[i];
        sumsq[0] += x[i] * x[i];
        min[0] = x[i] < min[0] ? x[i] : min[0];
        max[0] = x[i] > max[0] ? x[i] : max[0];
        zeros[0] += x[i] == 0.0f;
    }
    for (int k = 1; k < LANES; k++) {
        sum[0] += sum[k];
        sumsq[0] += sumsq[k];
        min[0] = min[k] < min[0] ? min[k] : min[0];
        max[0] = max[k] > max[0] ? max[k] : max[0];
        zeros[0] += zeros[k];
    }
    *out = (block_sums){sum[0], sumsq[0], min[0], max[0], (uint32_t)zeros[0]};
}

static void thin(const float *restrict x, int n, float *restrict out) {
    float sum[THIN_LANES] = {0}, sumsq[THIN_LANES] = {0};
    int i = 0;
    for (; i + THIN_LANES <= n; i += THIN_LANES)
        for (int k = 0; k < THIN_LANES; k++) {
            sum[k] += x[i + k];
            sumsq[k] += x[i + k] * x[i + k];
        }
    for (; i < n; i++) {
        sum[0] += x[i];
        sumsq[0] += x[i] * x[i];
    }
    for (int k = 1; k < THIN_LANES; k++) {
        sum[0] += sum[k];
        sumsq[0] += sumsq[k];
    }
    out[0] = sum[0];
    out[1] = sumsq[0];
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

/* Values, their change and its angle with the gradient, in one walk over memory. */
static inline __attribute__((always_inline)) void update_loop(
    const float *restrict fresh, float *restrict old, const float *restrict grad, int n,
    const int roll, const int with_grad, float *restrict diff, block_sums *restrict now,
    block_sums *restrict change, float *restrict dots) {
    float sum = 0, sumsq = 0, min = fresh[0], max = fresh[0];
    float dsum = 0, dsumsq = 0, dmin = fresh[0] - old[0], dmax = dmin, dot = 0, gsumsq = 0;
    int32_t zeros = 0, dzeros = 0;
    for (int i = 0; i < n; i++) {
        float v = fresh[i];
        float d = v - old[i];
        if (roll) old[i] = v;
        diff[i] = d;
        sum += v;
        dsum += d;
        sumsq += v * v;
        dsumsq += d * d;
        min = v < min ? v : min;
        dmin = d < dmin ? d : dmin;
        max = v > max ? v : max;
        dmax = d > dmax ? d : dmax;
        zeros += v == 0.0f;
        dzeros += d == 0.0f;
        if (with_grad) {
            dot += d * grad[i];
            gsumsq += grad[i] * grad[i];
        }
    }
    *now = (block_sums){sum, sumsq, min, max, (uint32_t)zeros};
    *change = (block_sums){dsum, dsumsq, dmin, dmax, (uint32_t)dzeros};
    dots[0] = dot;
    dots[1] = gsumsq;
}

static void update(const float *fresh, float *old, const float *grad, int n, int roll, float *diff,
                   block_sums *now, block_sums *change, float *dots) {
    if (roll && grad)
        update_loop(fresh, old, grad, n, 1, 1, diff, now, change, dots);
    else if (roll)
        update_loop(fresh, old, grad, n, 1, 0, diff, now, change, dots);
    else if (grad)
        update_loop(fresh, old, grad, n, 0, 1, diff, now, change, dots);
    else
        update_loop(fresh, old, grad, n, 0, 0, diff, now, change, dots);
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

static void tally_groups(const float *x, int64_t num, int64_t step, tally *t) {
    for (int64_t k = 0; k < num; k++, x += step)
        for (int i = 0; i < GROUP; i += 8) tally_eight(x + i, t);
}

/* Counting every element leaves memory idle: the next block is fetched meanwhile. */
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
    for (int c = 0; c < n; c++) {
        sum[c] = t->code[0][at + c] + t->code[1][at + c] + t->code[2][at + c] + t->code[3][at + c];
        t->code[0][at + c] = t->code[1][at + c] = t->code[2][at + c] = t->code[3][at + c] = 0;
    }
}

const loops OF(loops) = {
    moments,      thin,       update,    scale, dots,        widen_half,
    widen_bfloat, tally_groups, tally_all, drain, OF(outside), OF(zeros),
    OF(active),
};
