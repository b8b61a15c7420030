/* A chunk of a tensor, block by block: the sums of the fast loops are taken where they hold, and done
 * again with care where they do not. */
#include "batch.h"

#include <math.h>
#include <string.h>

/* The cosine of change and gradient reads one block in five of a tensor larger than this: it is an
 * angle over thousands of elements, and a third stream through memory would cost more than it
 * tells. */
enum { ALL_DOTS = 16 * BLOCK, DOT_STRIDE = 5 };

void reset(double *sums) {
    memset(sums, 0, FIELDS * sizeof *sums);
    sums[MIN] = INFINITY;
    sums[MAX] = -INFINITY;
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

static void do_block(const batch *b, const loops *loop, int64_t k, int64_t at, int n, desk *d,
                     slot *s) {
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
static void take_part(const batch *b, const loops *loop, int64_t k, int n, desk *d, slot *s) {
    block_sums now;
    loop->moments(d->wide, n, 0, &now);
    take(loop, &now, d->wide, n, s->sums, d->room);
    if (b->ends && b->ends[2 * k] > -INFINITY)
        s->outside += loop->outside(d->wide, n, b->ends[2 * k], b->ends[2 * k + 1]);
}

int is_part(const batch *b, int64_t k) {
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
static void do_part(const batch *b, const loops *loop, int64_t k, int64_t begin, int64_t end,
                    desk *d, slot *s) {
    enum { GROUPS_AHEAD = 16 };
    const int width = width_of(b->dtype[k]);
    const int64_t step = (int64_t)b->part * GROUP;
    int n = 0;
    for (int64_t at = first_of_part(b, begin); at < end; at += step) {
        const int length = end - at < GROUP ? (int)(end - at) : GROUP;
        const char *next = (const char *)(uintptr_t)b->data[k] + (at + GROUPS_AHEAD * step) * width;
        __builtin_prefetch(next);
        if (GROUP * width > LINE_BYTES) __builtin_prefetch(next + LINE_BYTES);
        float *room = d->wide + n;
        const float *x = as_float(loop, b->data[k], b->dtype[k], at, length, room);
        if (x != room) memcpy(room, x, (size_t)length * sizeof *x);
        n += length;
        if (n > BLOCK - GROUP) {
            take_part(b, loop, k, n, d, s);
            n = 0;
        }
    }
    if (n) take_part(b, loop, k, n, d, s);
}

void count_active(const batch *b, int64_t k, const loops *loop, float *room) {
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

void do_chunk(const batch *b, const loops *loop, int64_t k, int64_t begin, desk *d, slot *s) {
    const int64_t end = begin + CHUNK < b->count[k] ? begin + CHUNK : b->count[k];
    memset(s, 0, sizeof *s);
    reset(s->sums);
    reset(s->delta);
    reset(s->grad);
    if (!is_part(b, k)) {
        for (int64_t at = begin; at < end; at += BLOCK)
            do_block(b, loop, k, at, end - at < BLOCK ? (int)(end - at) : BLOCK, d, s);
    } else if (b->dtype[k] == F64) {
        do_part_f64(b, k, begin, end, s);
    } else {
        do_part(b, loop, k, begin, end, d, s);
    }
}
