/* Histograms of float32 blocks: which elements are looked at, their codes counted, codes to bins. */
#include "kernel.h"

runs runs_of(int64_t at, int n, int64_t total, int stride) {
    if (stride <= 1 || total <= SMALL) return (runs){0, n, n};
    int64_t skip = (stride - at / GROUP % stride) % stride; /* blocks start at a whole group */
    return (runs){skip * GROUP, (int64_t)stride * GROUP, GROUP};
}

/* A constant run would queue up at one counter; it is one addition. */
static void tally_constant(float value, int n, tally *t) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (!(bits & 0x7fffffffu))
        t->zero += (uint64_t)n;
    else if (!((bits >> 22) & 0x1ff))
        *(bits >> 31 ? &t->under_neg : &t->under_pos) += (uint64_t)n;
    else
        t->code[0][bits >> 22] += (uint32_t)n;
    t->least = 0;
}

static uint32_t smallest_code(tally *t) {
    uint32_t found = 0;
    for (int k = 0; k < TABLES; k++) {
        found += t->code[k][0] + t->code[k][CODES / 2];
        t->code[k][0] = t->code[k][CODES / 2] = 0;
    }
    return found;
}

/* Upper bound of the codes of a block, its sign left out. */
static int top_code(const block_sums *s) {
    const float top = biggest(s);
    uint32_t bits;
    memcpy(&bits, &top, 4);
    return is_ordinary(s) ? (int)(bits >> 22) & (CODES / 2 - 1) : CODES / 2 - 1;
}

/* Zero shares its code with the smallest subnormals: tell them apart where they have just been
 * counted. */
static void part_tiny(const loops *loop, const float *x, int n, tally *t) {
    const uint32_t tiny = smallest_code(t);
    if (!tiny) return;
    const uint32_t zeros = loop->zeros(x, n);
    t->zero += zeros;
    if (tiny == zeros) return;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        if ((bits & 0x7fffffffu) && !((bits >> 22) & 0x1ff))
            *(bits >> 31 ? &t->under_neg : &t->under_pos) += 1;
    }
}

/* All of these: by bits what can be, the rest by tables. */
static void count(const loops *loop, const float *x, int n, tally *t) {
    const int sifted = loop->sift(x, n, t), rest = n - sifted;
    if (!rest) return;
    loop->tally_all(x + sifted, rest, t);
    t->tabled = 1;
    t->least = 0;
    part_tiny(loop, x + sifted, rest, t);
}

/* What was kept; before the end, what is left over by sifting stays. At the end zeros make it a
 * whole number of steps, and are not counted. */
static void count_kept(const loops *loop, tally *t, int end) {
    enum { STEPS = 256 };
    const int kept = t->num_kept, added = end ? -kept & (STEPS - 1) : 0;
    memset(t->kept + kept, 0, (size_t)added * sizeof *t->kept);
    const int sifted = loop->sift(t->kept, kept + added, t);
    t->num_kept = 0;
    if (!sifted) {
        count(loop, t->kept, kept, t);
    } else if (end) {
        t->zero -= (uint64_t)added;
    } else {
        t->num_kept = kept - sifted;
        memmove(t->kept, t->kept + sifted, (size_t)t->num_kept * sizeof *t->kept);
    }
}

void tally_block(const loops *loop, const block_sums *s, const float *x, int n, runs r,
                 int constant, tally *t) {
    const int top = top_code(s);
    if (top >= t->used) t->used = top + 1;
    if (r.begin == 0 && r.length == n) {
        t->seen += (uint64_t)n;
        if (constant)
            tally_constant(x[0], n, t);
        else
            count(loop, x, n, t);
        return;
    }
    int64_t at = r.begin;
    const int before = t->num_kept;
    for (; at + GROUP <= n; at += r.step, t->num_kept += GROUP)
        memcpy(t->kept + t->num_kept, x + at, GROUP * sizeof *x);
    if (at < n) {
        memcpy(t->kept + t->num_kept, x + at, (size_t)(n - at) * sizeof *x);
        t->num_kept += (int)(n - at);
    }
    t->seen += (uint64_t)(t->num_kept - before);
    if (t->num_kept > KEPT / 2) count_kept(loop, t, 0);
}

/* The bins of one sign, from the one nearest to zero outwards; `way` is the sign. */
static void add_run(uint32_t *nearest, int way, const uint32_t *sum, int n, int shared) {
    if (shared)
        for (int c = 0; c < n; c++) add_to(nearest + way * c, sum[c], 1);
    else if (way > 0)
        for (int c = 0; c < n; c++) nearest[c] += sum[c];
    else
        for (int c = 0; c < n; c++) nearest[-c] += sum[c];
}

static uint64_t total(const uint32_t *sum, int n) {
    uint64_t found = 0;
    for (int c = 0; c < n; c++) found += sum[c];
    return found;
}

/* Half octaves are runs of the code table; what lies below and above is summed.
 * Exponent 255 (NaN, Inf) is left out. With `shared`, other threads add to the same line. Only the
 * codes in use are walked, and those below the first bin only if elements are missing above it:
 * most tensors are small, and this is done once for each. */
void fold(const loops *loop, tally *t, uint32_t *bins, int shared) {
    enum { FIRST = 2 * (127 + MIN_EXPONENT), LAST = 2 * (127 + MAX_EXPONENT), INF = 2 * 255 };
    if (t->num_kept) count_kept(loop, t, 1);
    loop->settle(t);
    const int least = t->least > FIRST ? t->least : FIRST, num = t->used - least;
    const int inside = LAST > least ? LAST - least : 0, to = num < inside ? num : inside;
    uint64_t left = t->seen - t->zero - t->under_pos - t->under_neg;
    for (int negative = 0; negative < 2 && num > 0; negative++) {
        uint32_t sum[CODES / 2];
        uint32_t *nearest = bins + (negative ? ZERO_BIN - 1 : ZERO_BIN + 1);
        const int way = negative ? -1 : 1;
        loop->drain(t, negative * (CODES / 2) + least, num, sum);
        left -= total(sum, num);
        int from = 0;
        while (from < to && !sum[from]) from++; /* their bins are not even in a cache */
        add_run(nearest + way * (1 + least - FIRST + from), way, sum + from, to - from, shared);
        const int above = t->used < INF ? num : INF - least;
        if (above > inside)
            add_to(nearest + way * (SIDE - 1), (uint32_t)total(sum + inside, above - inside),
                   shared);
    }
    for (int negative = 0; negative < 2; negative++) {
        uint32_t sum[CODES / 2];
        uint64_t below = negative ? t->under_neg : t->under_pos;
        if (left) {
            loop->drain(t, negative * (CODES / 2), FIRST, sum);
            below += total(sum, FIRST);
        }
        if (below)
            add_to(bins + (negative ? ZERO_BIN - 1 : ZERO_BIN + 1), (uint32_t)below, shared);
    }
    if (t->zero) add_to(&bins[ZERO_BIN], (uint32_t)t->zero, shared);
    t->zero = t->under_pos = t->under_neg = t->seen = 0;
    t->used = t->tabled = t->scattered = 0;
    t->least = CODES / 2;
}
