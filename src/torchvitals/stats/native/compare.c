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

/* A stretch of units at a time, its counters in registers over all rows. */
enum { STRETCH = 16 };

void OF(active)(const float *restrict x, int64_t rows, int64_t apart, int n, float floor,
                uint32_t *restrict counts, float *restrict totals) {
    int at = 0;
    for (; at + STRETCH <= n; at += STRETCH) {
        uint32_t found[STRETCH] = {0};
        float total[STRETCH] = {0};
        for (int64_t row = 0; row < rows; row++)
            for (int k = 0; k < STRETCH; k++) {
                float v = x[row * apart + at + k];
                v = v < 0.0f ? -v : v;
                found[k] += v > floor;
                total[k] += v;
            }
        for (int k = 0; k < STRETCH; k++) counts[at + k] += found[k];
        for (int k = 0; totals && k < STRETCH; k++) totals[at + k] += total[k];
    }
    for (int64_t row = 0; row < rows; row++)
        for (int k = at; k < n; k++) {
            float v = x[row * apart + k];
            v = v < 0.0f ? -v : v;
            counts[k] += v > floor;
            if (totals) totals[k] += v;
        }
}
