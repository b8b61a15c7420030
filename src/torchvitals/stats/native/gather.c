/* Samples of weights: a few whole cache lines of each. */
#include "kernel.h"

#include <string.h>

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
            copy_run(chosen_loops(), g, k, 0, g->count[k], 0);
            continue;
        }
        const int64_t all = g->count[k] / LINE;
        int64_t line = g->start[k] % all;
        for (int64_t i = 0; i < g->lines[k]; i++) {
            copy_run(chosen_loops(), g, k, line * LINE, LINE, i * LINE);
            line += g->stride[k];
            if (line >= all) line -= all;
        }
    }
}

/* Whether the same lines of two lists hold the same bits: `out` is where the second list is. */
EXPORT int torchvitals_same(const gather *g) {
    for (int64_t k = 0; k < g->num; k++) {
        const int size = width_of(g->dtype[k]);
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
