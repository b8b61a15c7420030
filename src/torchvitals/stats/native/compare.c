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

void OF(magnitude)(const float *restrict x, int n, float *restrict totals) {
    for (int i = 0; i < n; i++) totals[i] += x[i] < 0.0f ? -x[i] : x[i];
}

void OF(active)(const float *restrict x, int n, float floor, uint32_t *restrict counts) {
    for (int i = 0; i < n; i++) counts[i] += (x[i] > floor) | (x[i] < -floor);
}
