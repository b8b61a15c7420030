/* What is derived from sums (torchvitals.stats.sums.derive says it in Python), for the thread that
 * writes: with the interpreter's lock given back, and narrowed to the float32 that are stored. */
#include "kernel.h"

#include <math.h>

enum { STATS = 10 };

static void derive(const double *s, double *out) {
    const double finite = s[COUNT] - s[NANS] - s[POSINF] - s[NEGINF];
    const double square = s[SUMSQ] / finite, mean = s[SUM] / finite;
    const double variance = square - mean * mean;
    const int some = finite > 0;
    out[0] = some ? sqrt(s[SUMSQ]) : NAN;
    out[1] = sqrt(square);
    out[2] = mean;
    /* Of equal elements the difference is rounding alone. */
    out[3] = s[MIN] == s[MAX] || variance < 0 ? 0.0 : sqrt(variance);
    out[4] = some ? s[MIN] : NAN;
    out[5] = some ? s[MAX] : NAN;
    out[6] = s[ZEROS] / s[COUNT];
    out[7] = s[NANS];
    out[8] = s[POSINF];
    out[9] = s[NEGINF];
}

/* `steps` tables of `num` x FIELDS sums become steps x num lines of `width` numbers, of which the
 * first ones are set: the columns but `skip` of them. `sumsq` gets the sums of squares, NaN where
 * no element is finite. */
EXPORT void torchvitals_derive(const uint64_t *tables, int64_t steps, int64_t num, int skip,
                               float *out, int64_t width, double *sumsq) {
    for (int64_t step = 0; step < steps; step++) {
        const double *sums = (const double *)(uintptr_t)tables[step];
        for (int64_t k = 0; k < num; k++, sums += FIELDS, out += width) {
            double found[STATS];
            derive(sums, found);
            for (int c = skip; c < STATS; c++) out[c - skip] = (float)found[c];
            *sumsq++ = isnan(found[0]) ? NAN : sums[SUMSQ];
        }
    }
}
