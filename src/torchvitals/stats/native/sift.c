/* Counting codes by bits, where the processor has the instructions for it.
 *
 * A table takes an increment an element, and neighbours of the same code wait for each other. Here
 * each element becomes a word with one bit set: the place of its code among the 32 from the largest
 * one down. The words are added up column by column, in binary: a plane holds one binary digit of
 * all columns' sums, and three words become a digit and a carry in a few logical operations. So an
 * element costs the same whatever its value is: with AVX-512 a third of an increment, with AVX2 a
 * little less than one.
 *
 * Codes further down (a 65,000th of the largest value) are few, and looked up one by one; where they
 * are not few, tables take over until the tensor's end. Zeros are what is left.
 */
#include "kernel.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>

#if defined(__AVX512F__)
typedef __m512i word;
enum { LANES = 16 };
static inline word all_lanes(uint32_t v) { return _mm512_set1_epi32((int)v); }
static inline word bits_of(const void *x) { return _mm512_loadu_si512(x); }
static inline void put(void *to, word v) { _mm512_storeu_si512(to, v); }
static inline word both_of(word a, word b) { return _mm512_and_si512(a, b); }
static inline word less(word a, word b) { return _mm512_sub_epi32(a, b); }
static inline word lowest(word a, word b) { return _mm512_min_epu32(a, b); }
static inline word shifted(word one, word by) { return _mm512_sllv_epi32(one, by); }
#define UP(v, by) _mm512_slli_epi32(v, by)
#define DOWN(v, by) _mm512_srli_epi32(v, by)
static inline word signs(word v) { return _mm512_srai_epi32(v, 31); }
#define LOWER_HALVES(a, b) _mm512_shuffle_i64x2(a, b, 0x44)
#define UPPER_HALVES(a, b) _mm512_shuffle_i64x2(a, b, 0xee)
#define QUARTERS(v) _mm512_shuffle_i64x2(v, v, 0xb1)
#define PAIRS(v) _mm512_shuffle_epi32(v, 0x4e)
#define NEIGHBOURS(v) _mm512_shuffle_epi32(v, 0xb1)
static inline uint32_t below(word v, word limit) { return _mm512_cmplt_epu32_mask(v, limit); }
/* The digit of a + b + c stays in a; the carry is given back. */
static inline word add_up(word *a, word b, word c) {
    const word carry = _mm512_ternarylogic_epi32(*a, b, c, 0xe8);
    *a = _mm512_ternarylogic_epi32(*a, b, c, 0x96);
    return carry;
}
#else
typedef __m256i word;
enum { LANES = 8 };
static inline word all_lanes(uint32_t v) { return _mm256_set1_epi32((int)v); }
static inline word bits_of(const void *x) { return _mm256_loadu_si256(x); }
static inline void put(void *to, word v) { _mm256_storeu_si256(to, v); }
static inline word both_of(word a, word b) { return _mm256_and_si256(a, b); }
static inline word less(word a, word b) { return _mm256_sub_epi32(a, b); }
static inline word lowest(word a, word b) { return _mm256_min_epu32(a, b); }
static inline word shifted(word one, word by) { return _mm256_sllv_epi32(one, by); }
#define UP(v, by) _mm256_slli_epi32(v, by)
#define DOWN(v, by) _mm256_srli_epi32(v, by)
static inline word signs(word v) { return _mm256_srai_epi32(v, 31); }
#define LOWER_HALVES(a, b) _mm256_permute2x128_si256(a, b, 0x20)
#define UPPER_HALVES(a, b) _mm256_permute2x128_si256(a, b, 0x31)
#define PAIRS(v) _mm256_shuffle_epi32(v, 0x4e)
#define NEIGHBOURS(v) _mm256_shuffle_epi32(v, 0xb1)
static inline uint32_t below(word v, word limit) {
    /* v < limit as unsigned numbers: the larger of both is not v. */
    const word reached = _mm256_cmpeq_epi32(_mm256_max_epu32(v, limit), v);
    return ~(uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(reached)) & 0xff;
}
static inline word add_up(word *a, word b, word c) {
    const word odd = _mm256_xor_si256(*a, b);
    const word carry = _mm256_or_si256(_mm256_and_si256(*a, b), _mm256_and_si256(odd, c));
    *a = _mm256_xor_si256(odd, c);
    return carry;
}
#endif

/* Words that become one carry: they need no more than registers. */
enum { WORDS = 16, STEP = WORDS * LANES };

/* Codes that a window is opened above the largest one so far: the next block's may be larger. */
enum { HEADROOM = 2 };

/* Largest codes that windows are made for: not those of tiny numbers, whose window would reach down
 * to where zero is, nor of Inf and NaN. */
enum { LOWEST = 2 * WINDOW, HIGHEST = 2 * 255 - 1 };

/* Groups of words after which planes are read: their digits end. */
enum { MOST = (1 << (DIGITS - FIRST_CARRY)) - 1 };

/* All elements, and the negative ones among them. */
typedef struct {
    word all, negative;
} pair;

static inline pair get(const plane *p) { return (pair){bits_of(p->all), bits_of(p->negative)}; }

static inline void set(plane *p, pair v) {
    put(p->all, v.all);
    put(p->negative, v.negative);
}

static inline pair add(pair *a, pair b, pair c) {
    pair carry;
    carry.all = add_up(&a->all, b.all, c.all);
    carry.negative = add_up(&a->negative, b.negative, c.negative);
    return carry;
}

#define ALWAYS static inline __attribute__((always_inline))

/* The elements of a step that are below the window. AVX-512 puts them aside on the way; otherwise
 * the smallest magnitudes tell whether the step has any, and then it is looked through again. */
typedef struct {
    word smallest, end;
    int num;
    uint32_t bits[STEP + LANES];
} few;

typedef struct {
    word top, one;
    pair digit[FIRST_CARRY];
} sums;

/* `magnitude`: the sign shifted out, less one; zero wraps around, and is not below anything. */
#if defined(__AVX512F__)
ALWAYS void put_aside(few *f, word bits, word magnitude) {
    const uint32_t mask = below(magnitude, f->end);
    put(f->bits + f->num, _mm512_maskz_compress_epi32((__mmask16)mask, bits));
    f->num += __builtin_popcount(mask);
}

ALWAYS void find_few(const float *x, few *f) { (void)x, (void)f; }
#else
ALWAYS void put_aside(few *f, word bits, word magnitude) {
    (void)bits;
    f->smallest = lowest(f->smallest, magnitude);
}

static __attribute__((noinline)) void search(const float *x, few *f) {
    for (int i = 0; i < STEP; i += LANES) {
        uint32_t mask = below(less(UP(bits_of(x + i), 1), all_lanes(1)), f->end);
        for (; mask; mask &= mask - 1) memcpy(f->bits + f->num++, x + i + __builtin_ctz(mask), 4);
    }
}

ALWAYS void find_few(const float *x, few *f) {
    if (below(f->smallest, f->end)) search(x, f);
    f->smallest = all_lanes(UINT32_MAX);
}
#endif

ALWAYS pair one_word(const float *x, sums *s, few *f) {
    __builtin_prefetch(x + BLOCK); /* counting leaves memory idle: the next block is asked for */
    const word bits = bits_of(x), magnitude = UP(bits, 1);
    /* Beyond the window the shift leaves nothing. */
    const word found = shifted(s->one, less(s->top, DOWN(magnitude, 23)));
    put_aside(f, bits, less(magnitude, s->one));
    return (pair){found, both_of(found, signs(bits))};
}

ALWAYS pair two_words(const float *x, sums *s, few *f) {
    const pair a = one_word(x, s, f), b = one_word(x + LANES, s, f);
    return add(&s->digit[0], a, b);
}

ALWAYS pair four_words(const float *x, sums *s, few *f) {
    const pair a = two_words(x, s, f), b = two_words(x + 2 * LANES, s, f);
    return add(&s->digit[1], a, b);
}

ALWAYS pair eight_words(const float *x, sums *s, few *f) {
    const pair a = four_words(x, s, f), b = four_words(x + 4 * LANES, s, f);
    return add(&s->digit[2], a, b);
}

ALWAYS pair sixteen_words(const float *x, sums *s, few *f) {
    const pair a = eight_words(x, s, f), b = eight_words(x + 8 * LANES, s, f);
    return add(&s->digit[3], a, b);
}

/* Hand a carry on, as in counting: it meets the one that waits, and becomes the next one. */
static inline void carry_on(sieve *s, pair carry) {
    int k = FIRST_CARRY;
    uint32_t left = s->taken++;
    for (; left & 1; left >>= 1, k++) {
        pair digit = get(&s->digit[k]);
        carry = add(&digit, get(&s->carry[k]), carry);
        set(&s->digit[k], digit);
    }
    set(&s->carry[k], carry);
    if (!left) memset(&s->digit[k], 0, sizeof *s->digit); /* nobody was here before */
}

/* Magnitudes under the window's end, their sign shifted out, less one as `one_word` has them. */
static inline uint32_t end_of(const sieve *s) {
    return ((uint32_t)(s->top - WINDOW + 1) << 23) - 1;
}

/* Count those one by one; says how many they were. */
static int look_up(few *f, tally *t) {
    const int found = f->num;
    for (int i = 0; i < found; i++) {
        const uint32_t bits = f->bits[i];
        if ((bits >> 22) & (CODES / 2 - 1))
            t->code[0][bits >> 22]++;
        else
            *(bits >> 31 ? &t->under_neg : &t->under_pos) += 1;
    }
    if (found) t->least = 0;
    f->num = 0;
    return found;
}

static void open_window(sieve *s, int top) {
    memset(s->digit, 0, FIRST_CARRY * sizeof *s->digit);
    s->top = top + HEADROOM;
    s->looked_up = 0;
}

int OF(sift)(const float *x, int n, tally *t) {
    sieve *s = &t->sieve;
    const int groups = n / STEP, top = t->used - 1;
    if (!groups || top < LOWEST || top > HIGHEST || t->scattered) return 0;
    if (s->taken && (top > s->top || s->taken + (uint32_t)groups > MOST)) OF(settle)(t);
    if (!s->taken) open_window(s, top);
    sums now = {all_lanes((uint32_t)s->top), all_lanes(1), {{{0}, {0}}}};
    few aside; /* its bits are not set */
    aside.smallest = all_lanes(UINT32_MAX), aside.end = all_lanes(end_of(s)), aside.num = 0;
    for (int k = 0; k < FIRST_CARRY; k++) now.digit[k] = get(&s->digit[k]);
    int found = 0;
    for (int g = 0; g < groups; g++) {
        carry_on(s, sixteen_words(x + g * STEP, &now, &aside));
        find_few(x + g * STEP, &aside);
        found += look_up(&aside, t);
    }
    for (int k = 0; k < FIRST_CARRY; k++) set(&s->digit[k], now.digit[k]);
    s->looked_up += (uint32_t)found;
    t->scattered = found > groups * STEP / 8;
    return groups * STEP;
}

/* Read the columns: the lanes of each half of these words, one for each sum, are added up by adding
 * the words to themselves with parts of them exchanged. Every lane of a half holds the result. */
#define ADD_TO_ITSELF(digit, num, EXCHANGED)                                                       \
    do {                                                                                           \
        word carry = all_lanes(0);                                                                 \
        for (int k = 0; k < (num); k++) carry = add_up(&(digit)[k], EXCHANGED((digit)[k]), carry); \
        (digit)[(num)++] = carry;                                                                  \
    } while (0)

/* The digits of both sums, with the carries that wait, half as many lanes of each in a word. */
static int with_carries(const sieve *s, word *digit) {
    const pair none = {all_lanes(0), all_lanes(0)};
    pair carry = none;
    word half_carry = all_lanes(0);
    int k = 0, some = 1;
    for (; some; k++) {
        const uint32_t left = k < FIRST_CARRY ? 1 : s->taken >> (k - FIRST_CARRY);
        pair mine = none;
        some = left > 0;
        if (some) {
            mine = get(&s->digit[k]);
            carry = add(&mine, k >= FIRST_CARRY && left & 1 ? get(&s->carry[k]) : none, carry);
        } else {
            mine = carry; /* the last digit */
        }
        digit[k] = LOWER_HALVES(mine.all, mine.negative);
        half_carry = add_up(&digit[k], UPPER_HALVES(mine.all, mine.negative), half_carry);
    }
    digit[k] = half_carry;
    return k + 1;
}

void OF(settle)(tally *t) {
    sieve *s = &t->sieve;
    if (!s->taken) return;
    word digit[DIGITS + 6];
    int num = with_carries(s, digit);
#ifdef QUARTERS
    ADD_TO_ITSELF(digit, num, QUARTERS);
#endif
    ADD_TO_ITSELF(digit, num, PAIRS);
    ADD_TO_ITSELF(digit, num, NEIGHBOURS);
    uint32_t all[WINDOW] = {0}, negative[WINDOW] = {0};
    for (int k = 0; k < num; k++) {
        uint32_t lane[LANES];
        put(lane, digit[k]);
        const uint32_t a = lane[0], n = lane[LANES / 2];
        for (int b = 0; b < WINDOW; b++) all[b] += (a >> b & 1) << k;
        for (int b = 0; b < WINDOW; b++) negative[b] += (n >> b & 1) << k;
    }
    if (s->top - WINDOW + 1 < t->least) t->least = s->top - WINDOW + 1;
    uint64_t found = s->looked_up;
    for (int b = 0; b < WINDOW; b++) {
        t->code[0][s->top - b] += all[b] - negative[b];
        t->code[0][CODES / 2 + s->top - b] += negative[b];
        found += all[b];
    }
    t->zero += (uint64_t)s->taken * STEP - found;
    s->taken = 0;
}

#else
int OF(sift)(const float *x, int n, tally *t) {
    (void)x, (void)n, (void)t;
    return 0;
}

void OF(settle)(tally *t) { (void)t; }
#endif
