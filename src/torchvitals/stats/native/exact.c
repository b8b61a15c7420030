/* The careful path: every value looked at for what it is, all sums in float64.
 *
 * Used for float64 tensors and for the rare block the fast loops can't do: one with NaN, Inf, or
 * values so large or small that their squares leave float32's range. Compiled with strict
 * arithmetic.
 */
#include "kernel.h"

#include <string.h>

static void add(double v, uint64_t bits, double *sums) {
    if ((bits & 0x7ff0000000000000u) == 0x7ff0000000000000u) {
        if (bits & 0x000fffffffffffffu)
            sums[NANS] += 1;
        else
            sums[bits >> 63 ? NEGINF : POSINF] += 1;
        return;
    }
    sums[SUM] += v;
    sums[SUMSQ] += v * v;
    if (v < sums[MIN]) sums[MIN] = v;
    if (v > sums[MAX]) sums[MAX] = v;
    if (v == 0) sums[ZEROS] += 1;
}

void exact_f64(const double *x, int64_t n, double *sums) {
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits;
        memcpy(&bits, x + i, 8);
        add(x[i], bits, sums);
    }
    sums[COUNT] += (double)n;
}

void exact_f32(const float *x, int64_t n, double *sums) {
    for (int64_t i = 0; i < n; i++) {
        double v = x[i];
        uint64_t bits;
        memcpy(&bits, &v, 8);
        add(v, bits, sums);
    }
    sums[COUNT] += (double)n;
}

/* a . b, a . a and b . b over the places where both are finite. */
void exact_dots(const float *a, const float *b, int64_t n, double *dots) {
    for (int64_t i = 0; i < n; i++) {
        if (!is_finite(a[i]) || !is_finite(b[i])) continue;
        dots[0] += (double)a[i] * b[i];
        dots[1] += (double)a[i] * a[i];
        dots[2] += (double)b[i] * b[i];
    }
}

/* The bin of a finite double, from its exponent and first mantissa bit; -1 for NaN and Inf. */
static int bin_of(double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    int exponent = (int)((bits >> 52) & 0x7ff);
    if (exponent == 0x7ff) return -1;
    if (v == 0) return ZERO_BIN;
    int half = (int)((bits >> 51) & 1);
    int side = 2 * (exponent - 1023 - MIN_EXPONENT) + half + 1;
    if (side < 0 || exponent - 1023 < MIN_EXPONENT) side = 0;
    if (side > SIDE - 1) side = SIDE - 1;
    return bits >> 63 ? ZERO_BIN - 1 - side : ZERO_BIN + 1 + side;
}

void exact_bins_f64(const double *x, int64_t n, uint32_t *bins) {
    for (int64_t i = 0; i < n; i++) {
        int bin = bin_of(x[i]);
        if (bin >= 0) bins[bin]++;
    }
}
