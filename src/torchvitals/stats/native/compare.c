/* The loops that only compare. They may meet NaN, so unlike block.c they are compiled with strict
 * arithmetic: with finite-only arithmetic a compiler may find that NaN equals zero.
 */
#include "kernel.h"

uint32_t OF(outside)(const float *restrict x, int n, float low, float high) {
    int32_t found = 0;
    for (int i = 0; i < n; i++) found += (x[i] <= low) | (x[i] >= high);
    return (uint32_t)found;
}

uint32_t OF(zeros)(const float *restrict x, int n) {
    int32_t found = 0;
    for (int i = 0; i < n; i++) found += x[i] == 0.0f;
    return (uint32_t)found;
}

enum { STRETCH = 16, VECTORS = STRETCH / WIDE };

/* A stretch of units at a time, its counters in registers over all rows. */
void OF(active)(const float *restrict x, int64_t rows, int64_t apart, int n, float floor,
                uint32_t *restrict counts, float *restrict totals) {
    int at = 0;
    for (; at + STRETCH <= n; at += STRETCH) {
        ints found[VECTORS] = {{0}};
        floats total[VECTORS] = {{0}};
        for (int64_t row = 0; row < rows; row++)
            for (int k = 0; k < VECTORS; k++) {
                ints bits;
                floats v;
                memcpy(&bits, x + row * apart + at + k * WIDE, sizeof bits);
                bits &= 0x7fffffff; /* without its sign */
                memcpy(&v, &bits, sizeof v);
                found[k] -= v > floor; /* true is -1 */
                total[k] += v;
            }
        for (int k = 0; k < STRETCH; k++) counts[at + k] += (uint32_t)found[k / WIDE][k % WIDE];
        for (int k = 0; totals && k < STRETCH; k++) totals[at + k] += total[k / WIDE][k % WIDE];
    }
    for (int64_t row = 0; row < rows; row++)
        for (int k = at; k < n; k++) {
            const float v = __builtin_fabsf(x[row * apart + k]);
            counts[k] += v > floor;
            if (totals) totals[k] += v;
        }
}
